"""Models of the package ``xlstm`` as models of ours: block stacks and large models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seqmix.checkpoint import Checkpoint
from seqmix.errors import CheckpointError
from seqmix.weights import Weights
from seqmix_xlstm.block_stack_names import STACK_PREFIX, block_stack_rows, stored_backend
from seqmix_xlstm.block_stack_options import BlockStack, block_stack
from seqmix_xlstm.large_names import PACKAGE_EMBEDDING, is_fused, large_rows
from seqmix_xlstm.large_options import large_config
from seqmix_xlstm.names import expected_shapes, weights_of
from seqmix_xlstm.settings import ConfigSource, Settings, read_settings
from seqmix_xlstm.stored import Stored, TensorSource, read_stored

__all__ = ["read_bare_stack", "read_block_stack", "read_large"]

HEAD = "lm_head.weight"
OUTSIDE = ("embed.weight", "head.weight")
"""What a bare stack does not have."""


def read_block_stack(
    weights: TensorSource, config: ConfigSource, *, backend: str | None = None
) -> Checkpoint:
    """An ``xLSTMLMModel``: its state dict and its ``xLSTMLMModelConfig``.

    ``backend``, "vanilla" or "cuda", goes before the one that the configuration gives sLSTM: it
    wrote R and bias, each in its own layout. Without either the shape of R tells. CheckpointError
    lists options that ours do not have, and tensors that are missing, misshapen or not expected.
    """
    where, tensors = read_stored(weights)
    if not any(name.startswith(STACK_PREFIX) for name in tensors):
        raise CheckpointError(
            f"{where}: expected tensors of an xLSTMLMModel, '{STACK_PREFIX}...', found "
            f"{', '.join(list(tensors)[:3]) or 'none'}; a stack without embedding and head is read "
            "by read_bare_stack"
        )
    settings = read_settings(config)
    stack = _stack(settings, tensors, backend)
    shapes = expected_shapes(stack.config, settings.where)
    read = _stack_weights(where, tensors, stack, shapes, STACK_PREFIX)
    return Checkpoint(stack.config, read, source=where)


def read_bare_stack(
    weights: TensorSource, config: ConfigSource, *, backend: str | None = None
) -> Checkpoint:
    """An ``xLSTMBlockStack``, which has no embedding and no head, for a model that has its own.

    The weights are those of the steps and the last norm: ``model.load_state_dict`` takes them with
    ``strict=False``. The vocabulary of the configuration is its ``vocab_size``, one token where
    there is none. Otherwise as :func:`read_block_stack`.
    """
    where, tensors = read_stored(weights)
    settings = read_settings(config)
    settings = Settings({"vocab_size": 1, **settings.data}, settings.where)
    stack = _stack(settings, tensors, backend)
    shapes = expected_shapes(stack.config, settings.where)
    inside = {name: shape for name, shape in shapes.items() if name not in OUTSIDE}
    return Checkpoint(stack.config, _stack_weights(where, tensors, stack, inside, ""), source=where)


def read_large(weights: TensorSource, config: ConfigSource) -> Checkpoint:
    """An ``xLSTMLarge``: its state dict and its ``xLSTMLargeConfig``.

    Whether the weights are single or fused is seen from the tensors: the package changes the
    option behind the configuration's back. CheckpointError as :func:`read_block_stack`.
    """
    where, tensors = read_stored(weights)
    settings = read_settings(config)
    name = _name(settings, "xlstm-large")
    dtype = _dtype(tensors, PACKAGE_EMBEDDING)
    model = large_config(settings, name, dtype, len(tensors))
    shapes = expected_shapes(model, settings.where)
    rows = large_rows(
        shapes, len(model.steps()) // 2, embedding=PACKAGE_EMBEDDING, fused=is_fused(tensors)
    )
    return Checkpoint(model, weights_of(where, tensors, rows, shapes), source=where)


def _stack(settings: Settings, tensors: Mapping[str, Stored], backend: str | None) -> BlockStack:
    return block_stack(
        settings,
        name=_name(settings, "xlstm"),
        dtype=_dtype(tensors, "post_blocks_norm.weight"),
        tensors=len(tensors),
        backend=backend,
    )


def _stack_weights(
    where: str,
    tensors: Mapping[str, Stored],
    stack: BlockStack,
    shapes: Mapping[str, tuple[int, ...]],
    prefix: str,
) -> Weights:
    backend = stored_backend(where, stack, tensors)
    rows = block_stack_rows(stack, shapes, prefix, backend)
    ignored = {HEAD} if stack.config.tie_embeddings else set()
    return weights_of(where, tensors, rows, shapes, ignored)


def _name(settings: Settings, default: str) -> str:
    """A model is called like the directory of its configuration, where that is a file."""
    folder = Path(settings.where).resolve().parent if settings.is_file else None
    return folder.name if folder is not None and folder.name else default


def _dtype(tensors: Mapping[str, Stored], ending: str) -> str:
    """The dtype of the tensor that stands for all; f32 where it is missing, which is told later."""
    return next((t.dtype for name, t in tensors.items() if name.endswith(ending)), "f32")
