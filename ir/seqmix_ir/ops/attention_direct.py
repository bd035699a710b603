"""Attention written in simpler ops, with the whole ``[B, H, S, T]`` matrix of logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Div, Maximum, Mul, Sub
from seqmix_ir.ops.constants import constant, size_value
from seqmix_ir.ops.elementwise import Exp, Reciprocal, Sqrt
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.logic import And, Equal, GreaterEqual, Less, LessEqual, Where
from seqmix_ir.ops.precision import narrow, widen
from seqmix_ir.ops.reduce import Reduce
from seqmix_ir.ops.shape import Reshape, Transpose, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["decompose_attention"]


def decompose_attention(b: Builder, op: Op, scale: float, causal: bool, window: int) -> Value:
    """The ops that an ``attention`` stands for; a row that sees nothing is 0 without any NaN."""
    q, k, v, query_positions, key_positions, bias, sinks = op.operands
    if q is None or k is None or v is None or query_positions is None or key_positions is None:
        raise IRError(f"{op.loc}: 'attention' lacks one of its first five operands")
    wide_q, wide_k, wide_v = (widen(b, x) for x in (q, k, v))
    dtype = wide_q.type.dtype
    factor = constant(b, scale, dtype) if scale else _inverse_root(b, wide_q)
    logits = _grouped_product(b, wide_q, b(Transpose((0, 1, 3, 2)), wide_k))
    logits = b(Mul(), logits, factor)
    if bias is not None:
        logits = b(Add(), logits, narrow(b, bias, dtype))
    seen = b(Unsqueeze((1,)), _seen(b, query_positions, key_positions, causal, window))
    logits = b(Where(), seen, logits, constant(b, -math.inf, dtype))
    sink = None if sinks is None else b(Unsqueeze((1, 2)), narrow(b, sinks, dtype))
    weights, total = _weights(b, logits, sink)
    y = b(Div(), _grouped_product(b, weights, wide_v), total)
    return narrow(b, y, q.type.dtype)


def _weights(b: Builder, logits: Value, sink: Value | None) -> tuple[Value, Value]:
    """Weights that are not yet divided, and what to divide by: 1 for a row that sees nothing."""
    dtype = logits.type.dtype
    zero, one = constant(b, 0.0, dtype), constant(b, 1.0, dtype)
    top = b(Reduce("max", (3,), True), logits)
    if sink is not None:
        top = b(Maximum(), top, sink)
    nothing = b(Equal(), top, constant(b, -math.inf, dtype))
    top = b(Where(), nothing, zero, top)
    weights = b(Exp(), b(Sub(), logits, top))
    total = b(Reduce("sum", (3,), True), weights)
    if sink is not None:
        total = b(Add(), total, b(Exp(), b(Sub(), sink, top)))
    return weights, b(Where(), b(Equal(), total, zero), one, total)


def _seen(
    b: Builder, query_positions: Value, key_positions: Value, causal: bool, window: int
) -> Value:
    """What each query sees, ``[B, S, T]``."""
    zero = constant(b, 0, "i64")
    qp, kp = b(Unsqueeze((2,)), query_positions), b(Unsqueeze((1,)), key_positions)
    seen = b(And(), b(GreaterEqual(), qp, zero), b(GreaterEqual(), kp, zero))
    if causal:
        seen = b(And(), seen, b(LessEqual(), kp, qp))
    if window:
        near = b(Less(), b(Sub(), qp, kp), constant(b, window, "i64"))
        seen = b(And(), seen, near)
    return seen


def _grouped_product(b: Builder, x: Value, y: Value) -> Value:
    """``x [B, H, M, N] @ y [B, G, N, V]``, where H/G heads of ``x`` share one of ``y``."""
    B, H, M, N = x.type.shape
    _, G, _, V = y.type.shape
    if H == G:
        return b(Matmul(), x, y)
    shared: Size = _ratio(H, G) * M
    product = b(Matmul(), b(Reshape((B, G, shared, N)), x), y)
    return b(Reshape((B, H, M, V)), product)


def _ratio(H: Size, G: Size) -> int:
    if not isinstance(H, int) or not isinstance(G, int):
        raise IRError(f"the numbers of heads must be known, not {H} and {G}")
    return H // G


def _inverse_root(b: Builder, q: Value) -> Value:
    """``1 / sqrt(K)``."""
    K, dtype = q.type.shape[-1], q.type.dtype
    if isinstance(K, int):
        return constant(b, 1 / math.sqrt(max(K, 1)), dtype)
    return b(Reciprocal(), b(Sqrt(), size_value(b, K, dtype)))
