"""Options of the large xLSTM models, as the package ``xlstm`` and transformers write them."""

from __future__ import annotations

from typing import Any

from seqmix.config import ModelConfig, build_config
from seqmix.errors import CheckpointError, ConfigError
from seqmix_xlstm.families import xlstm_large_config
from seqmix_xlstm.settings import Settings

__all__ = ["DTYPES", "HUGGING_FACE_FFN_FACTOR", "hugging_face_config", "large_config"]

CONTEXT_LENGTH = 8192
"""Of models that do not say what they are meant for; it is no limit."""
HUGGING_FACE_FFN_FACTOR = 2.667
PACKAGE_FFN_FACTOR = 2.6667
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
# How a result is computed there, not what it is: kernels, modes, precision of the arithmetic.
# The weight mode is checked only: the tensors tell which one it is.
IGNORED = {
    "norm_reduction_force_float32",
    "sequence_kernel",
    "step_kernel",
    "mode",
    "return_last_states",
    "autocast_kernel_dtype",
    "inference_state_dtype",
}
KNOWN = {
    *IGNORED,
    "embedding_dim",
    "num_heads",
    "num_blocks",
    "vocab_size",
    "use_bias",
    "norm_eps",
    "add_out_norm",
    "qk_dim_factor",
    "v_dim_factor",
    "chunkwise_kernel",
    "chunk_size",
    "eps",
    "ffn_proj_factor",
    "ffn_round_up_to_multiple_of",
    "gate_soft_cap",
    "output_logit_soft_cap",
    "weight_mode",
}


def large_config(settings: Settings, name: str, dtype: str, tensors: int) -> ModelConfig:
    """The model of an ``xLSTMLargeConfig``.

    ``tensors`` is how many there are in all. CheckpointError for options that are unknown, wrong
    or mean what ours do not have.
    """
    settings.refuse_unknown(KNOWN)
    sizes = {
        "width": settings.integer("embedding_dim", None),
        "blocks": settings.at_most("num_blocks", None, tensors),
        "heads": settings.integer("num_heads", None),
        "vocab_size": settings.integer("vocab_size", None),
        "ffn_factor": settings.real("ffn_proj_factor", PACKAGE_FFN_FACTOR),
    }
    return _config(settings, name=name, dtype=dtype, **sizes)


def hugging_face_config(
    settings: Settings, name: str, tensors: int, eos: Any = None
) -> ModelConfig:
    """The model of a ``config.json`` of transformers; ``eos`` goes before the one inside.

    transformers keeps many options there that are no matter here; unknown ones are let pass.
    ``tensors`` is how many there are in all. CheckpointError for those that are wrong or mean what
    ours do not have.
    """
    if settings.data.get("quantization_config"):
        raise settings.wrong(
            "quantization_config", "absent: only plain weights are read", "one that is there"
        )
    config = _config(
        settings,
        name=name,
        dtype=DTYPES[_dtype(settings)],
        width=_either(settings, "hidden_size", "embedding_dim", 4096),
        blocks=_blocks(settings, tensors),
        heads=settings.integer("num_heads", 8),
        vocab_size=settings.integer("vocab_size", 50304),
        ffn_factor=settings.real("ffn_proj_factor", HUGGING_FACE_FFN_FACTOR),
        context_length=settings.integer("max_position_embeddings", CONTEXT_LENGTH),
        tie_embeddings=settings.flag("tie_word_embeddings", False),
    )
    first = _ids(settings, "bos_token_id", 0)
    last = settings if eos is None else Settings({"eos_token_id": eos}, settings.where)
    ends = {"bos": first[0] if first else None, "eos": _ids(last, "eos_token_id", 2)}
    return config.model_copy(update=ends)


def _config(settings: Settings, **sizes: Any) -> ModelConfig:
    """What both sources say in the same words."""
    settings.require("use_bias", False)
    settings.require("add_out_norm", True)
    kernel = settings.data.get("chunkwise_kernel")
    if isinstance(kernel, str) and "siging" in kernel:
        raise settings.wrong("chunkwise_kernel", "one with an exponential input gate", kernel)
    settings.choice("weight_mode", "single", {"single": "single", "fused": "fused"})
    try:
        config = xlstm_large_config(
            **sizes,
            qk_dim_factor=settings.real("qk_dim_factor", 0.5),
            v_dim_factor=settings.real("v_dim_factor", 1.0),
            gate_soft_cap=_cap(settings, "gate_soft_cap", 15.0),
            logit_soft_cap=_cap(settings, "output_logit_soft_cap", 30.0),
            ffn_round_up_to=settings.integer("ffn_round_up_to_multiple_of", 64),
            norm_eps=settings.real("norm_eps", 1e-6),
        )
        config = _with_cell(
            config, eps=settings.real("eps", 1e-6), chunk=settings.integer("chunk_size", 64)
        )
    except (ConfigError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{settings.where}: is no usable model: {error}") from error
    return config


def _with_cell(config: ModelConfig, *, eps: float, chunk: int) -> ModelConfig:
    """The model with options of its mLSTM that the family leaves at their defaults."""
    data = config.model_dump()
    changed = {k: v for k, v, usual in (("eps", eps, 1e-6), ("chunk", chunk, 64)) if v != usual}
    data["blocks"][0]["steps"][0].update(changed)
    return build_config(ModelConfig, data, f"model '{config.name}'")


def _cap(settings: Settings, key: str, default: float) -> float:
    """A soft cap; null is none."""
    if key in settings.data and settings.data[key] is None:
        return 0.0
    return settings.real(key, default)


def _either(settings: Settings, key: str, other: str, default: int) -> int:
    """An option with two names; where both are written they must agree."""
    if key not in settings:
        return settings.integer(other, default)
    value = settings.integer(key, default)
    if (second := settings.integer(other, value)) != value:
        raise settings.wrong(other, f"{value}, as {key} is", second)
    return value


def _blocks(settings: Settings, tensors: int) -> int:
    key = "num_hidden_layers" if "num_hidden_layers" in settings else "num_blocks"
    _either(settings, "num_hidden_layers", "num_blocks", 32)
    return settings.at_most(key, 32, tensors)


def _dtype(settings: Settings) -> str:
    key = "dtype" if "dtype" in settings else "torch_dtype"
    found = str(settings.data.get(key) or "float32").removeprefix("torch.")
    if found not in DTYPES:
        raise settings.wrong(key, " or ".join(map(repr, DTYPES)), found)
    return found


def _ids(settings: Settings, key: str, default: int) -> list[int]:
    """Token ids: one, a list, or none where null is written."""
    value = settings.data.get(key, default)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        raise settings.wrong(key, "token ids >= 0", value)
    return ids
