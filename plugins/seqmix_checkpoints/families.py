"""Our models in transformers: what family one belongs to, and its weights under their names."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from seqmix.config import ModelConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import CheckpointError
from seqmix_checkpoints.fused import join_fused
from seqmix_checkpoints.layouts import FAMILIES, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, Family
from seqmix_checkpoints.rope_types import TYPES, rope_settings

__all__ = ["family_of_model", "to_transformers"]

Options = dict[str, Any]

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}


def to_transformers(transformers: Any, config: ModelConfig, model: nn.Module) -> Any:
    """The same model in transformers, in evaluation mode with eager attention, weights copied.

    ``transformers`` is the module, so that nothing here depends on it. CheckpointError when the
    model belongs to no family that is read from there.
    """
    family = family_of_model(config)
    layers = _layers(config)
    own = _neox_settings if family is GPT_NEOX else _llama_settings
    theirs = getattr(transformers, f"{family.model}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        num_hidden_layers=len(layers),
        num_attention_heads=layers[0][0]["heads"],
        intermediate_size=layers[0][1]["hidden"],
        max_position_embeddings=_max_positions(config),
        rope_parameters=_rope_parameters(config, family),
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=config.bos,
        eos_token_id=config.eos[0] if config.eos else None,
        pad_token_id=None,
        attn_implementation="eager",
        **own(config, family, layers),
    )
    network = getattr(transformers, f"{family.model}ForCausalLM")(theirs)
    network = network.to(torch_dtype(config.dtype)).eval()
    network.load_state_dict(_state(config, family, model), strict=True)
    return network


def family_of_model(config: ModelConfig) -> Family:
    """The narrowest family that a model fits into; CheckpointError says why none does."""
    layers = _layers(config)
    attention, mlp = layers[0]
    windows = {options.get("window") for options, _ in layers}
    biases = (bool(attention.get("bias")), bool(attention.get("output_bias")))
    if config.norm.kind == "layer":
        return _neox(config, layers, windows)
    if mlp["kind"] != "swiglu":
        raise _none(config, f"its MLP is '{mlp['kind']}' behind an rms norm")
    if attention.get("qk_norm"):
        return _qwen3(config, attention, biases)
    if biases == (True, False) and not mlp.get("bias"):
        return QWEN2
    if windows == {None} and biases[0] == biases[1]:
        return LLAMA
    if None not in windows and len(windows) == 1 and not any((*biases, mlp.get("bias"))):
        return MISTRAL
    raise _none(config, f"its windows are {windows} and its biases of q, k, v and output {biases}")


def _neox(config: ModelConfig, layers: list[tuple[Options, Options]], windows: set[Any]) -> Family:
    attention, mlp = layers[0]
    if mlp["kind"] != "mlp" or not mlp.get("bias", True):
        raise _none(config, "behind a layer norm the MLP should be 'mlp' with biases")
    if attention.get("kv_heads") not in (None, attention["heads"]) or windows != {None}:
        raise _none(config, "behind a layer norm attention should have no groups and no window")
    if attention.get("qk_norm") or bool(attention.get("bias")) != bool(
        attention.get("output_bias")
    ):
        raise _none(config, "behind a layer norm attention should have all biases or none")
    if attention["heads"] * attention["head_dim"] != config.width:
        raise _none(config, "behind a layer norm the heads should be as wide as the model together")
    return GPT_NEOX


def _qwen3(config: ModelConfig, attention: Options, biases: tuple[bool, bool]) -> Family:
    if biases[0] != biases[1] or attention.get("qk_norm_eps", 1e-6) != config.norm.eps:
        raise _none(
            config, "with qk_norm it should have all biases or none, and one eps for all norms"
        )
    return QWEN3


def _none(config: ModelConfig, found: str) -> CheckpointError:
    return CheckpointError(
        f"model '{config.name}' belongs to no family of transformers that is supported "
        f"({', '.join(FAMILIES)}): {found}"
    )


def _layers(config: ModelConfig) -> list[tuple[Options, Options]]:
    """The options of the attention and the MLP of each layer, equal but for the window."""
    steps = config.steps()
    parallel = len(steps[0]) == 2
    kinds = config.branches()
    sizes = {len(step) for step in steps}
    names = {(a.kind, m.kind) for a, m in zip(kinds[::2], kinds[1::2], strict=False)}
    if sizes != {2 if parallel else 1} or len(kinds) % 2 or len(names) != 1:
        raise _none(config, "expected pairs of one attention and one MLP branch")
    (first, second) = next(iter(names))
    if first != "attention" or second not in ("swiglu", "mlp"):
        raise _none(config, f"expected pairs of attention and MLP, found '{first}' and '{second}'")
    if parallel and config.norm.kind != "layer":
        raise _none(config, "its branches run in parallel behind an rms norm")
    layers = [
        (a.options, {"kind": m.kind, **m.options})
        for a, m in zip(kinds[::2], kinds[1::2], strict=True)
    ]
    shapes = [({**a, "window": None}, m) for a, m in layers]
    if any(shape != shapes[0] for shape in shapes) or layers[0][0].get("scale"):
        raise _none(config, "its layers differ in more than their windows, or have a scale")
    return layers


def _llama_settings(
    config: ModelConfig, family: Family, layers: list[tuple[Options, Options]]
) -> dict[str, Any]:
    attention, mlp = layers[0]
    settings: dict[str, Any] = {
        "num_key_value_heads": attention.get("kv_heads") or attention["heads"],
        "head_dim": attention["head_dim"],
        "rms_norm_eps": config.norm.eps,
    }
    if family in (LLAMA, QWEN3):
        settings["attention_bias"] = bool(attention.get("bias"))
    if family is LLAMA:
        settings["mlp_bias"] = bool(mlp.get("bias"))
    if family is MISTRAL:
        settings["sliding_window"] = attention["window"]
    if family in (QWEN2, QWEN3):
        settings |= _qwen_windows(config, [options.get("window") for options, _ in layers])
    return settings


def _qwen_windows(config: ModelConfig, windows: list[int | None]) -> dict[str, Any]:
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise _none(config, f"its layers have windows of different sizes: {sorted(sizes)}")
    if not sizes:
        return {}
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": sizes.pop(), "layer_types": kinds}


def _neox_settings(
    config: ModelConfig, family: Family, layers: list[tuple[Options, Options]]
) -> dict[str, Any]:
    attention, mlp = layers[0]
    return {
        "layer_norm_eps": config.norm.eps,
        "attention_bias": bool(attention.get("bias")),
        "hidden_act": ACTIVATIONS[mlp.get("activation", "gelu")],
        "use_parallel_residual": len(config.steps()[0]) == 2,
    }


def _state(config: ModelConfig, family: Family, model: nn.Module) -> dict[str, Tensor]:
    """The weights under their names, fused and tied as they are there."""
    parallel = len(config.steps()[0]) == 2
    layers = len(config.branches()) // 2
    names = family.names(layers, "huggingface", parallel=parallel)
    state = {names[ours]: tensor for ours, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        state["lm_head.weight"] = state[names["embed.weight"]]
    return join_fused(state, config.branches()[0].options["heads"])


def _rope_parameters(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Our position options in transformers' words."""
    position = config.position
    settings = None if position is None else rope_settings(position)
    if position is None or settings is None:
        found = None if position is None else f"'{position.kind}' {position.options}"
        raise _none(
            config,
            f"expected one of the rope types {', '.join(TYPES)} and its options, found {found}",
        )
    if position.options.get("layout", "half") != "half":
        raise _none(config, "transformers has the rotary layout 'half' only")
    return {**settings, **_part(config, family, position.options.get("rotary_dim"))}


def _max_positions(config: ModelConfig) -> int:
    """What transformers calls so: the original length where the scale follows the length."""
    position = config.position
    if position is not None and position.kind == "dynamic-ntk":
        return int(position.options["original_context_length"])
    return config.context_length


def _part(config: ModelConfig, family: Family, rotary_dim: int | None) -> dict[str, Any]:
    """The rotated part of a head as the factor that gives it back when it is rounded down."""
    head_dim = config.head_dim or 0
    if family is not GPT_NEOX:
        if rotary_dim not in (None, head_dim):
            raise _none(config, f"it rotates {rotary_dim} of {head_dim} entries of a head")
        return {}
    factor = (rotary_dim or head_dim) / head_dim
    if int(head_dim * factor) < (rotary_dim or head_dim):
        factor = math.nextafter(factor, 2.0)
    return {"partial_rotary_factor": factor}
