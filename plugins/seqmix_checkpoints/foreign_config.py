"""A ``config.json`` of transformers as our configuration, family by family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seqmix.config import ModelConfig
from seqmix.errors import CheckpointError, did_you_mean
from seqmix_checkpoints.decoder import DecoderSizes, validated
from seqmix_checkpoints.layouts import FAMILIES, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, Family
from seqmix_checkpoints.rope import read_rope
from seqmix_checkpoints.settings import Settings, shown

__all__ = ["config_of", "family_of"]

DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
SILU = {"silu": "silu", "swish": "silu"}
# transformers' spellings of the two functions that torch has.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    **SILU,
}
# What transformers takes for an entry that is not there, where that is not the same in all.
DEFAULTS: dict[str, dict[str, Any]] = {
    MISTRAL.name: {"num_key_value_heads": 8, "sliding_window": 4096},
    QWEN2.name: {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    QWEN3.name: {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
FULL, SLIDING = "full_attention", "sliding_attention"


def family_of(data: Mapping[str, Any], where: str) -> Family:
    """The family that a configuration names; CheckpointError when it is none of ours.

    A model type of ours goes before the architectures; one of another project counts when its
    architecture is one of ours.
    """
    kind, named = data.get("model_type"), data.get("architectures")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    architectures = named if isinstance(named, list) else []
    for family in FAMILIES.values():
        if f"{family.model}ForCausalLM" in architectures:
            return family
    raise CheckpointError(
        f"{where}: model type {shown(kind)} is not supported"
        f"{did_you_mean(str(kind)[:80], FAMILIES)}; supported: {', '.join(FAMILIES)}"
    )


def config_of(
    data: Mapping[str, Any], family: Family, name: str, where: str, eos: Any = None
) -> ModelConfig:
    """A ``config.json`` as our configuration; ``eos`` goes before the one inside.

    Raises CheckpointError for an entry that is wrong, or means something that is not supported.
    """
    settings = Settings(data, where, DEFAULTS.get(family.name))
    if settings.data.get("quantization_config"):
        raise CheckpointError(
            f"{where}: has a quantization_config; expected plain weights, "
            "fetch those or a GGUF file"
        )
    read = _neox_sizes if family is GPT_NEOX else _llama_sizes
    shared: dict[str, Any] = {
        "name": name or "model",
        "vocab_size": settings.integer("vocab_size"),
        "width": settings.integer("hidden_size"),
        "hidden": settings.integer("intermediate_size"),
        "tied": settings.flag("tie_word_embeddings"),
        "dtype": _dtype(settings),
        "bos": next(iter(settings.ids("bos_token_id")), None),
        "eos": tuple(
            settings.ids("eos_token_id")
            if eos is None
            else Settings({"eos_token_id": eos}, where).ids("eos_token_id")
        ),
    }
    return validated(DecoderSizes(**shared, **read(settings, family)), where)


def _llama_sizes(settings: Settings, family: Family) -> dict[str, Any]:
    """What Llama, Mistral and Qwen say in the same words."""
    settings.choice("hidden_act", SILU, "silu")
    heads = settings.integer("num_attention_heads")
    position, context_length = read_rope(settings.data, settings.where)
    return {
        "heads": heads,
        "kv_heads": settings.integer("num_key_value_heads", heads),
        "head_dim": settings.integer("head_dim", settings.integer("hidden_size") // heads or 1),
        "eps": settings.real("rms_norm_eps", 1e-6),
        "position": position,
        "context_length": context_length,
        "windows": _windows(settings, family),
        "qk_norm": family is QWEN3,
        **_biases(settings, family),
    }


def _biases(settings: Settings, family: Family) -> dict[str, bool]:
    """Qwen2 has them where it wants them and Mistral has none, whatever their settings say."""
    if family in (MISTRAL, QWEN2):
        return {"bias": family is QWEN2}
    bias = settings.flag("attention_bias")
    mlp_bias = family is LLAMA and settings.flag("mlp_bias")
    return {"bias": bias, "output_bias": bias, "mlp_bias": mlp_bias}


def _neox_sizes(settings: Settings, family: Family) -> dict[str, Any]:
    heads, width = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    if width % heads:
        raise CheckpointError(
            f"{settings.where}: hidden_size {width} should be a multiple of "
            f"num_attention_heads {heads}"
        )
    head_dim = width // heads
    bias = settings.flag("attention_bias", missing=True)
    position, context_length = read_rope(_neox_rope(settings), settings.where, head_dim)
    return {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim,
        "eps": settings.real("layer_norm_eps", 1e-5),
        "position": position,
        "context_length": context_length,
        "windows": (None,) * settings.integer("num_hidden_layers"),
        "norm": "layer",
        "bias": bias,
        "output_bias": bias,
        "mlp_bias": True,
        "activation": settings.choice("hidden_act", ACTIVATIONS, "gelu"),
        "parallel": settings.flag("use_parallel_residual", missing=True),
    }


def _neox_rope(settings: Settings) -> dict[str, Any]:
    """The settings with GPT-NeoX's own words for theta and the rotated part translated."""
    data = dict(settings.data)
    data["rope_theta"] = data.get("rotary_emb_base", data.get("rope_theta", 10000.0))
    data["partial_rotary_factor"] = data.get("rotary_pct", data.get("partial_rotary_factor", 0.25))
    return data


def _windows(settings: Settings, family: Family) -> tuple[int | None, ...]:
    """The attention window of each layer, as the configuration class of the family derives it."""
    layers = settings.integer("num_hidden_layers")
    read: dict[str, Callable[[Settings, int], list[str]]] = {
        MISTRAL.name: _mistral_kinds,
        QWEN2.name: _qwen_kinds,
        QWEN3.name: _qwen_kinds,
    }
    derived = read.get(family.name, _full_kinds)(settings, layers)
    kinds = settings.data.get("layer_types")
    kinds = derived if kinds is None else kinds
    known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not known or len(kinds) != layers:
        raise CheckpointError(
            f"{settings.where}: layer_types should have {layers} entries of '{FULL}' or "
            f"'{SLIDING}', found {str(kinds)[:100]}"
        )
    # Qwen's layer types are a choice of their own; the others only repeat what the window says.
    chosen = read.get(family.name) is _qwen_kinds and settings.flag("use_sliding_window")
    if kinds != derived and not chosen:
        raise CheckpointError(
            f"{settings.where}: layer_types do not fit the window of a {family.name} model: "
            f"expected {', '.join(sorted(set(derived)))} in every layer, "
            f"found {', '.join(sorted(set(kinds)))}; correct layer_types or sliding_window"
        )
    return tuple(settings.integer("sliding_window") if k == SLIDING else None for k in kinds)


def _full_kinds(settings: Settings, layers: int) -> list[str]:
    return [FULL] * layers


def _mistral_kinds(settings: Settings, layers: int) -> list[str]:
    return [FULL if settings.data.get("sliding_window") is None else SLIDING] * layers


def _qwen_kinds(settings: Settings, layers: int) -> list[str]:
    """The first layers see everything, those from ``max_window_layers`` on a window."""
    if not settings.flag("use_sliding_window") or settings.data.get("sliding_window") is None:
        return [FULL] * layers
    first = settings.data.get("max_window_layers")
    if type(first) is not int or first < 0:
        raise CheckpointError(
            f"{settings.where}: max_window_layers should be a number of layers, "
            f"found {shown(first)}"
        )
    return [SLIDING if i >= first else FULL for i in range(layers)]


def _dtype(settings: Settings) -> str:
    data = settings.data
    dtype = str(data.get("dtype") or data.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise CheckpointError(
            f"{settings.where}: dtype should be one of {', '.join(DTYPES)}, found {shown(dtype)}"
        )
    return DTYPES[dtype]
