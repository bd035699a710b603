"""Options of the block stacks of the package ``xlstm`` (``xLSTMLMModelConfig``) as a model of ours.

Dropout is off when a model is used and unknown to ours: its options are let pass, as are those of
fresh weights and of weight decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seqmix.config import ModelConfig, build_config
from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import state_specs
from seqmix_xlstm.initial import small_std, wang_std
from seqmix_xlstm.settings import Settings

__all__ = ["CONTEXT_LENGTH", "BlockStack", "block_stack"]

CONTEXT_LENGTH = 2048
"""Of models that do not say what they are meant for; it is no limit."""
STACK = {
    "mlstm_block",
    "slstm_block",
    "context_length",
    "num_blocks",
    "embedding_dim",
    "add_post_blocks_norm",
    "bias",
    "dropout",
    "slstm_at",
    "vocab_size",
    "tie_weights",
    "weight_decay_on_embedding",
    "add_embedding_dropout",
}
FROM_STACK = {"embedding_dim", "bias", "dropout", "context_length"}
ROUNDING = {"proj_factor", "round_proj_up_dim_up", "round_proj_up_to_multiple_of"}
MLSTM = {*FROM_STACK, *ROUNDING, "conv1d_kernel_size", "qkv_proj_blocksize", "num_heads"}
FEED_FORWARD = {*ROUNDING, "act_fn", "embedding_dim", "dropout", "bias", "ff_type"}
SLSTM_TYPES = {f"dtype{kind}" for kind in ("", "_b", "_r", "_w", "_g", "_s", "_a")}
SLSTM = {
    *SLSTM_TYPES,
    "embedding_dim",
    "hidden_size",
    "num_heads",
    "conv1d_kernel_size",
    "group_norm_weight",
    "dropout",
    "num_states",
    "num_gates",
    "backend",
    "function",
    "bias_init",
    "recurrent_weight_init",
    "gradient_recurrent_cut",
    "gradient_recurrent_clipval",
    "forward_clipval",
    "batch_size",
    "input_shape",
    "internal_input_shape",
    "output_shape",
    "constants",
    "enable_automatic_mixed_precision",
    "initial_val",
}
BACKENDS = {"cuda": "cuda", "vanilla": "vanilla"}
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu"}


@dataclass(frozen=True)
class BlockStack:
    """A stack as a model, and what its tensors alone do not tell.

    ``scalar`` are the blocks that are sLSTM, ``backend`` the one whose layout their R and bias
    have, where it is written; ``feed_forward`` says whether a feed-forward branch follows them,
    ``norm_weight`` whether their norm has a weight.
    """

    config: ModelConfig
    blocks: int
    scalar: frozenset[int]
    heads: int
    backend: str | None
    feed_forward: bool
    norm_weight: bool


def block_stack(
    settings: Settings, *, name: str, dtype: str, tensors: int, backend: str | None = None
) -> BlockStack:
    """What an ``xLSTMLMModelConfig`` says; ``tensors`` is how many there are in all.

    ``backend`` goes before the one of the configuration. CheckpointError for options that are
    unknown, wrong or mean what ours do not have.
    """
    settings.refuse_unknown(STACK)
    settings.require("bias", False)
    settings.require("add_post_blocks_norm", True)
    width, blocks = (
        settings.integer("embedding_dim", 128),
        settings.at_most("num_blocks", 1, tensors),
    )
    scalar = _places(settings, blocks)
    cell = _scalar_settings(settings, scalar)
    feed_forward = _feed_forward(settings, width, blocks)
    matrix = _matrix(settings, width, blocks) if len(scalar) < blocks else {}
    steps: list[dict[str, Any]] = []
    for block in range(blocks):
        if block not in scalar:
            steps.append(matrix)
            continue
        steps.append({**_scalar(cell, blocks), "block": block})
        steps += [feed_forward] if feed_forward else []
    return BlockStack(
        config=_model(settings, name=name, width=width, dtype=dtype, steps=steps),
        blocks=blocks,
        scalar=scalar,
        heads=cell.integer("num_heads", 4),
        backend=_backend(cell, backend),
        feed_forward=bool(feed_forward),
        norm_weight=cell.flag("group_norm_weight", True),
    )


def _places(settings: Settings, blocks: int) -> frozenset[int]:
    """The blocks that are sLSTM: all where no other kind is described."""
    written = settings.data.get("slstm_at")
    if settings.group("mlstm_block") is None or written == "all":
        found = frozenset(range(blocks))
    elif isinstance(written or [], list | tuple) and all(type(p) is int for p in written or []):
        found = frozenset(written or [])
    else:
        raise settings.wrong("slstm_at", "block numbers or 'all'", written)
    if any(not 0 <= place < blocks for place in found):
        raise settings.wrong("slstm_at", f"blocks of 0 to {blocks - 1}", written)
    if found and settings.group("slstm_block") is None:
        raise settings.wrong("slstm_block", "there, as slstm_at names blocks of it", None)
    return found


def _matrix(settings: Settings, width: int, blocks: int) -> dict[str, Any]:
    """The options of our ``mlstm_up``."""
    block = settings.group("mlstm_block") or settings
    block.refuse_unknown({"mlstm"})
    layer = block.group("mlstm") or Settings({}, settings.where, "mlstm_block.mlstm.")
    layer.refuse_unknown(MLSTM)
    _check_rounding(layer, width, 2.0)
    return {
        "kind": "mlstm_up",
        "heads": layer.integer("num_heads", 4),
        "conv_taps": layer.integer("conv1d_kernel_size", 4),
        "blocks": blocks,
        "proj_factor": layer.real("proj_factor", 2.0),
        "round_up_to": layer.integer("round_proj_up_to_multiple_of", 64),
        **_unusual("qkv_block_size", layer.integer("qkv_proj_blocksize", 4), 4),
    }


def _scalar_settings(settings: Settings, scalar: frozenset[int]) -> Settings:
    """The options of the sLSTM cell, checked where there is such a block."""
    place = "slstm_block.slstm."
    block = settings.group("slstm_block")
    layer = block.group("slstm") if block is not None and scalar else None
    if layer is None:
        return Settings({}, settings.where, place)
    layer.refuse_unknown(SLSTM)
    layer.require("function", "slstm")
    layer.require("num_states", 4)
    layer.require("num_gates", 4)
    layer.require("gradient_recurrent_cut", False)
    layer.require("forward_clipval", None)
    layer.require("initial_val", 0.0)
    return layer


def _scalar(layer: Settings, blocks: int) -> dict[str, Any]:
    """The options of our ``slstm``. The peer clips no gradient unless it is told to."""
    clips = "gradient_recurrent_clipval" in layer
    return {
        "kind": "slstm",
        "heads": layer.integer("num_heads", 4),
        "conv_taps": layer.integer("conv1d_kernel_size", 4, least=0),
        "blocks": blocks,
        "clip": layer.real("gradient_recurrent_clipval", 0.0) if clips else 0.0,
    }


def _backend(layer: Settings, chosen: str | None) -> str | None:
    if chosen is not None and chosen not in BACKENDS:
        known = " or ".join(map(repr, BACKENDS))
        raise CheckpointError(f"{layer.where}: backend should be {known}, found {chosen!r}")
    written = layer.choice("backend", "cuda", BACKENDS) if "backend" in layer else None
    backend, key = chosen or written, "gradient_recurrent_clipval"
    # The peer's kernels clip h by the same number, by mistake: unseen from 1 on, as |h| < 1.
    if backend != "vanilla" and key in layer and (limit := layer.real(key, 1.0)) < 1:
        raise layer.wrong(key, ">= 1, as backend 'cuda' clips h by it too", limit)
    return backend


def _feed_forward(settings: Settings, width: int, blocks: int) -> dict[str, Any]:
    """The options of our ``swiglu``; none where the blocks have no such branch."""
    block = settings.group("slstm_block")
    if block is None:
        return {}
    block.refuse_unknown({"slstm", "feedforward"})
    if "feedforward" in block.data and block.data["feedforward"] is None:
        return {}
    layer = block.group("feedforward") or Settings({}, settings.where, "slstm_block.feedforward.")
    layer.refuse_unknown(FEED_FORWARD)
    layer.require("ff_type", "ffn_gated")
    hidden = _check_rounding(layer, width, 1.3)
    bias = layer.flag("bias", False)
    return {
        "kind": "swiglu",
        "hidden": hidden,
        "activation": layer.choice("act_fn", "gelu", ACTIVATIONS),
        "init_std": small_std(width),
        "down_init_std": wang_std(width, blocks),
        **_unusual("bias", bias, False),
    }


def _check_rounding(layer: Settings, width: int, factor: float) -> int:
    """The inner width; ours is always rounded up."""
    exact = layer.real("proj_factor", factor) * width
    step = layer.integer("round_proj_up_to_multiple_of", 64)
    size = math.ceil(exact / step) * step
    if not layer.flag("round_proj_up_dim_up", True) and math.floor(exact / step) * step != size:
        raise layer.wrong("round_proj_up_dim_up", "true: inner widths are rounded up", False)
    return size


def _unusual(key: str, value: Any, usual: Any) -> dict[str, Any]:
    """An option, unless it has the value that it has anyway."""
    return {} if value == usual else {key: value}


def _model(settings: Settings, *, name: str, width: int, dtype: str, steps: Any) -> ModelConfig:
    length = settings.integer("context_length", -1, least=-1)
    fields = {
        "name": name,
        "vocab_size": settings.integer("vocab_size", None),
        "width": width,
        "context_length": length if length > 0 else CONTEXT_LENGTH,
        "blocks": [{"steps": steps}],
        "norm": {"kind": "layer", "eps": 1e-5, "bias": False},
        "tie_embeddings": settings.flag("tie_weights", False),
        "init_std": small_std(width),
        "dtype": dtype,
    }
    try:
        config = build_config(ModelConfig, fields, f"model '{name}'")
        state_specs(config)
    except (ConfigError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{settings.where}: is no usable model: {error}") from error
    return config
