"""Rules of matrix products: two products, one per factor."""

from __future__ import annotations

from seqmix_ir import ops
from seqmix_ir.adjoint.table import reshaped, rule, size_of, sum_to
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Op, Value

__all__: list[str] = []


def transposed(b: Builder, x: Value) -> Value:
    """The last two axes changed."""
    rank = x.type.rank
    return b(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)


@rule(ops.Matmul)
def _matmul(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    x, y = op.values
    dx = b(op.defn, g, transposed(b, y))
    dy = b(op.defn, transposed(b, x), g)
    return sum_to(b, dx, x.type.shape), sum_to(b, dy, y.type.shape)


@rule(ops.Linear)
def _linear(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """``g W``, and with all rows below each other ``g^T x`` and the sum of ``g``."""
    x, weight, bias = op.operands
    if x is None or weight is None:
        raise IRError(f"{op.loc}: 'linear' lacks its operands")
    product = ops.Matmul(op.defn.attributes()["accumulate"])
    N, K = weight.type.shape
    rows = size_of(x.type.shape[:-1])
    flat_g = g if g.type.rank == 2 else reshaped(b, g, (rows, N))
    flat_x = x if x.type.rank == 2 else reshaped(b, x, (rows, K))
    dx = b(product, flat_g, weight) if g.type.rank < 2 else b(product, g, weight)
    d_weight = b(product, transposed(b, flat_g), flat_x)
    d_bias = None if bias is None else b(ops.Reduce("sum", (0,), False), flat_g)
    return reshaped(b, dx, x.type.shape), d_weight, d_bias
