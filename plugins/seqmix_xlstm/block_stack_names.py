"""Weights of the block stacks of the package ``xlstm``: their names and layouts, and ours.

The layer of sLSTM hands ``fgate`` to the input gate of its cell and ``igate`` to the forget gate;
ours have the names of what they do. R and the biases inside the cell are in the right order, but
in a layout that depends on the backend that wrote them. The shape of R tells which one that was
(K is never 4 K), that of the bias does not: one shape, two orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from seqmix.errors import CheckpointError
from seqmix_xlstm.block_stack_options import BlockStack
from seqmix_xlstm.names import (
    RECURRENT_CUDA,
    RECURRENT_VANILLA,
    RESIDUAL,
    SAME,
    TAPS,
    Row,
    bias_by_gate,
    bias_by_head,
    piece,
)
from seqmix_xlstm.stored import Shape, Stored

__all__ = ["STACK_PREFIX", "block_stack_rows", "stored_backend"]

STACK_PREFIX = "xlstm_block_stack."
RECURRENT = "xlstm.slstm_cell._recurrent_kernel_"
CONV = (
    Row("mixer.conv.weight", "xlstm.conv1d.conv.weight", TAPS),
    Row("mixer.conv.bias", "xlstm.conv1d.conv.bias", SAME),
)
NORM = Row("norm.weight", "xlstm_norm.weight", RESIDUAL)
MATRIX = (
    NORM,
    *CONV,
    Row("mixer.up.weight", "xlstm.proj_up.weight", SAME),
    Row("mixer.query.weight", "xlstm.q_proj.weight", SAME),
    Row("mixer.key.weight", "xlstm.k_proj.weight", SAME),
    Row("mixer.value.weight", "xlstm.v_proj.weight", SAME),
    Row("mixer.input_gate.weight", "xlstm.mlstm_cell.igate.weight", SAME),
    Row("mixer.input_gate.bias", "xlstm.mlstm_cell.igate.bias", SAME),
    Row("mixer.forget_gate.weight", "xlstm.mlstm_cell.fgate.weight", SAME),
    Row("mixer.forget_gate.bias", "xlstm.mlstm_cell.fgate.bias", SAME),
    Row("mixer.norm.weight", "xlstm.mlstm_cell.outnorm.weight", RESIDUAL),
    Row("mixer.skip", "xlstm.learnable_skip", SAME),
    Row("mixer.down.weight", "xlstm.proj_down.weight", SAME),
)
SCALAR = (
    NORM,
    *CONV,
    Row("mixer.input_gate.weight", "xlstm.fgate.weight", SAME),
    Row("mixer.forget_gate.weight", "xlstm.igate.weight", SAME),
    Row("mixer.cell_input.weight", "xlstm.zgate.weight", SAME),
    Row("mixer.output_gate.weight", "xlstm.ogate.weight", SAME),
)
FEED_FORWARD = (
    Row("norm.weight", "ffn_norm.weight", RESIDUAL),
    Row("mixer.down.weight", "ffn.proj_down.weight", SAME),
    Row("mixer.down.bias", "ffn.proj_down.bias", SAME),
)


def stored_backend(where: str, stack: BlockStack, tensors: Mapping[str, Stored]) -> str:
    """The backend, "vanilla" or "cuda", in whose layout R and bias of the sLSTM cells are stored.

    It is the one that is written, and R must have its shape; where none is, the shape decides.
    CheckpointError when the two are at odds.
    """
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        if name.endswith(RECURRENT) and len(tensor.shape) == 3:
            _, rows, columns = tensor.shape
            kind = "vanilla" if rows == 4 * columns else "cuda" if columns == 4 * rows else None
            found |= {kind: name} if kind else {}
    if stack.backend is None:
        return "vanilla" if set(found) == {"vanilla"} else "cuda"
    if found and stack.backend not in found:
        kind, name = next(iter(found.items()))
        raise CheckpointError(
            f"{where}: tensor '{name}' should have the layout of backend '{stack.backend}', found "
            f"{list(tensors[name].shape)}, which is that of '{kind}'; read it with "
            f"backend = '{kind}'"
        )
    return stack.backend


def block_stack_rows(
    stack: BlockStack, shapes: Mapping[str, Shape], prefix: str, backend: str
) -> list[Row]:
    """A row for each of our weights; ``shapes`` are ours, ``prefix`` stands before the stack's.

    ``backend`` is what :func:`stored_backend` says.
    """
    rows = [
        Row("embed.weight", "token_embedding.weight", SAME),
        Row("norm.weight", f"{prefix}post_blocks_norm.weight", RESIDUAL),
        Row("head.weight", "lm_head.weight", SAME),
    ]
    step = 0
    for block in range(stack.blocks):
        there = f"{prefix}blocks.{block}."
        here = [f"steps.{step + i}.branches.0." for i in (0, 1)]
        scalar = block in stack.scalar
        first = (*SCALAR, *_cell(stack, backend)) if scalar else MATRIX
        rows += [row.at(here[0], there) for row in first]
        if scalar and stack.feed_forward:
            rows += [row.at(here[1], there) for row in FEED_FORWARD]
            rows += _halves(shapes, here[1], there)
        step += 2 if scalar and stack.feed_forward else 1
    return rows


def _cell(stack: BlockStack, backend: str) -> tuple[Row, ...]:
    """R and bias of an sLSTM cell, and its norm."""
    vanilla = backend == "vanilla"
    bias = bias_by_gate(stack.heads) if vanilla else bias_by_head(stack.heads)
    norm = "xlstm.group_norm.weight" if stack.norm_weight else None
    return (
        Row("mixer.recurrent", RECURRENT, RECURRENT_VANILLA if vanilla else RECURRENT_CUDA),
        Row("mixer.bias", "xlstm.slstm_cell._bias_", bias),
        Row("mixer.norm.weight", norm, RESIDUAL),
    )


def _halves(shapes: Mapping[str, Shape], here: str, there: str) -> list[Row]:
    """Gate and up projection lie in one tensor, in this order."""
    rows = []
    for leaf in ("weight", "bias"):
        if (shape := shapes.get(f"{here}mixer.gate.{leaf}")) is None:
            continue
        size = shape[0]
        parts = {"gate": piece(0, size, 2 * size), "up": piece(size, 2 * size, 2 * size)}
        rows += [
            Row(f"{here}mixer.{part}.{leaf}", f"{there}ffn.proj_up.{leaf}", change)
            for part, change in parts.items()
        ]
    return rows
