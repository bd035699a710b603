"""Sums over the steps of a loop, pulled through what is linear: one product instead of one a step.

The gradient of a constant is such a sum. A product of two stacked factors, summed over the steps,
is one product whose inner axis runs over the steps too.
"""

from __future__ import annotations

import math

from seqmix_ir import ops
from seqmix_ir.adjoint.lift import Many
from seqmix_ir.adjoint.split import Split
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops import size_value

__all__ = ["total"]

_LINEAR = (
    ops.Neg,
    ops.Reshape,
    ops.Transpose,
    ops.Squeeze,
    ops.Unsqueeze,
    ops.Expand,
    ops.Slice,
    ops.Concat,
)


def total(b: Builder, split: Split, value: Value) -> Value:
    """The sum over all steps of a value of the body of ``split``, whose loop is emitted."""
    op = split.maker(value)
    if op is not None:
        b.loc = op.loc
        if isinstance(op.defn, _LINEAR) or _is_sum(op):
            return b(op.defn, *(total(b, split, v) for v in op.values))
        if isinstance(op.defn, ops.Add | ops.Sub) and op.types[0] == op.types[1]:
            return b(op.defn, *(total(b, split, v) for v in op.values))
        if isinstance(op.defn, ops.Matmul):
            return _product(b, split, op)
    return _summed(b, split, split.many(value))


def _is_sum(op: Op) -> bool:
    return isinstance(op.defn, ops.Reduce) and op.defn.kind == "sum"


def _summed(b: Builder, split: Split, many: Many) -> Value:
    if many.stacked:
        return b(ops.Reduce("sum", (0,), False), many.value)
    return b(ops.Mul(), many.value, size_value(b, split.T, many.value.type.dtype))


def _product(b: Builder, split: Split, op: Op) -> Value:
    x, y = (split.many(v) for v in op.values)
    if x.stacked != y.stacked:
        factors = (
            total(b, split, v) if m.stacked else m.value
            for v, m in zip(op.values, (x, y), strict=True)
        )
        return b(op.defn, *factors)
    lead = x.value.type.shape[1:-2]
    if not x.stacked or lead != y.value.type.shape[1:-2]:
        return _summed(b, split, split.many(op.results[0]))
    rank = len(lead)
    M, K = x.value.type.shape[-2:]
    N = y.value.type.shape[-1]
    axes = tuple(range(1, rank + 1))
    left = b(ops.Transpose((*axes, rank + 1, 0, rank + 2)), x.value)
    right = b(ops.Transpose((*axes, 0, rank + 1, rank + 2)), y.value)
    inner = math.prod((split.T, K))
    return b(
        op.defn,
        b(ops.Reshape((*lead, M, inner)), left),
        b(ops.Reshape((*lead, inner, N)), right),
    )
