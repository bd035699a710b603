"""How much memory and work ops cost, for rules that weigh one against the other."""

from __future__ import annotations

from seqmix_ir import ops
from seqmix_ir.dims import Size, evaluate_size, symbols_of
from seqmix_ir.graph import Op

__all__ = ["elements", "is_heavy"]

_NOMINAL = 64
"""What a size that is not known counts as."""

_HEAVY = (
    ops.Matmul,
    ops.Linear,
    ops.Conv1d,
    ops.CausalConv1d,
    ops.LongConv,
    ops.Attention,
    ops.LinearAttention,
    ops.Scan,
    ops.TopK,
    ops.CumProd,
    ops.CumMax,
    ops.CumMin,
    ops.LogCumSumExp,
)


def elements(shape: tuple[Size, ...]) -> int:
    """The number of elements, with a nominal number for every size that is not known."""
    total = 1
    for size in shape:
        known = dict.fromkeys(symbols_of(size), _NOMINAL)
        total *= max(1, evaluate_size(size, known))
    return total


def is_heavy(op: Op) -> bool:
    """Whether the op's results are cheaper kept than computed again."""
    return isinstance(op.defn, _HEAVY) or op.body is not None
