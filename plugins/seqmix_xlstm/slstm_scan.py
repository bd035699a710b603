"""The sLSTM cell as a loop of ordinary ops, with as few of them inside as can be.

Runtimes pay for every op in every step, far more than for its arithmetic. So all that does not
depend on h stands before or after the loop, layouts included: inside, everything is ``[H, B, ..]``,
which is what the product of a head's h with its matrix reads and gives.

B batch, S sequence, H heads, D width of a head.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from seqmix_ir.builder import trace_block
from seqmix_ir.errors import IRError
from seqmix_ir.ops.activation import Sigmoid, Softplus
from seqmix_ir.ops.arithmetic import Add, Div, Maximum, Mul, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Exp, Tanh
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.logic import And, Equal, Where
from seqmix_ir.ops.precision import narrow, wider_dtype
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Expand, Reshape, Transpose, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.dims import Size
    from seqmix_ir.graph import Op, Value
    from seqmix_ir.types import DType

__all__ = ["NOTHING", "scan_slstm"]

NOTHING = -1e30
"""The m of an element that remembers nothing: any input gate wins over it, and f is then 0."""

_SIGNS = ((1.0,), (-1.0,), (1.0,), (1.0,))
"""With f~ negated, log sigmoid(f~) is one op: ``-softplus(-f~)``."""


def scan_slstm(b: Builder, op: Op, sigmoid: bool) -> tuple[Value, ...]:
    """All results of ``op``, an sLSTM; ``sigmoid`` says which forget gate it has."""
    gates, recurrent, *states, valid = op.operands
    if gates is None or recurrent is None:
        raise IRError(f"{op.loc}: '{op.name}' lacks 'gates' or 'recurrent'")
    wide = wider_dtype(gates.type.dtype)
    carries = [_heads_first(b, narrow(b, s, wide)) for s in states if s is not None]
    fresh, start = _without_past(b, carries[1], carries[2], carries[3])
    sequences = [_steps(b, gates, wide, sigmoid)]
    if valid is not None:
        sequences.append(_mask(b, valid))
        if sigmoid:
            sequences[0] = _closed(b, sequences[0], sequences[1], gates.type.shape[4])
    looped = [*carries[:3], start, *sequences]
    slices = [s.type.with_shape(s.type.shape[1:]) for s in sequences]
    matrix = _matrix(b, recurrent, wide, sigmoid)
    types = [*(v.type for v in looped[:4]), *slices, matrix.type]
    hints = "h c n m gates" + " valid" * (valid is not None) + " recurrent"
    body = trace_block(types, partial(_step, sigmoid=sigmoid), hints, op.loc)
    *last, y = b.emit(Scan(4, len(sequences), 0), *looped, matrix, body=body)
    if valid is not None:
        y = b(Where(), sequences[1], y, constant(b, 0.0, wide))
        untouched = b(And(), fresh, b(Equal(), last[3], start))
        last[3] = b(Where(), untouched, carries[3], last[3])
    y = narrow(b, b(Transpose((2, 0, 1, 3)), y), gates.type.dtype)
    dtype = op.results[1].type.dtype
    return y, *(narrow(b, _heads_first(b, s), dtype) for s in last)


def _step(
    b: Builder, h: Value, c: Value, n: Value, m: Value, gates: Value, *rest: Value, sigmoid: bool
) -> tuple[Value, ...]:
    """One token; ``rest`` is its mask where there is one, and the matrices ``[H, D, 4 D]``."""
    *valid, matrix = rest
    pre = b(Add(), b(Matmul(), h, matrix), gates)
    D = h.type.shape[2]
    i, f, z, o = (b(Slice(2, g * D, (g + 1) * D), pre) for g in range(4))
    # With the sigmoid f is -f~.
    kept = b(Sub(), m, b(Softplus(), f)) if sigmoid else b(Add(), m, f)
    new_m = b(Maximum(), i, kept)
    i, f = b(Exp(), b(Sub(), i, new_m)), b(Exp(), b(Sub(), kept, new_m))
    new_c = b(Add(), b(Mul(), f, c), b(Mul(), i, b(Tanh(), z)))
    new_n = b(Add(), b(Mul(), f, n), i)
    new_h = b(Mul(), b(Sigmoid(), o), b(Div(), new_c, new_n))
    new = [new_h, new_c, new_n, new_m]
    if valid:
        before = (h, c, n, m)
        new = [b(Where(), valid[0], x, y) for x, y in zip(new, before, strict=True)]
    return *new, new[0]


def _heads_first(b: Builder, x: Value) -> Value:
    """``[B, H, D]`` as ``[H, B, D]``, or the other way round."""
    return b(Transpose((1, 0, 2)), x)


def _without_past(b: Builder, c: Value, n: Value, m: Value) -> tuple[Value, Value]:
    """Where nothing is remembered, and m with :data:`NOTHING` there.

    Once n is above 0 it stays so: the rule for the first token need not be asked in each step.
    """
    zero = constant(b, 0.0, m.type.dtype)
    fresh = b(And(), b(Equal(), n, zero), b(Equal(), c, zero))
    return fresh, b(Where(), fresh, constant(b, NOTHING, m.type.dtype), m)


def _steps(b: Builder, gates: Value, wide: DType, sigmoid: bool) -> Value:
    """The gates ``[B, S, H, 4, D]`` as ``[S, H, B, 4 D]``."""
    B, S, H, _, D = gates.type.shape
    steps = narrow(b, b(Transpose((1, 2, 0, 3, 4)), gates), wide)
    return b(Reshape((S, H, B, 4 * D)), _signed(b, steps, sigmoid))


def _closed(b: Builder, steps: Value, valid: Value, D: Size) -> Value:
    """The steps with gates at padding that add nothing and forget nothing, whatever h is."""
    if not isinstance(D, int):
        raise IRError(f"the width of a head must be known, not {D}")
    shut = b(Expand((2 * D,)), constant(b, -math.inf, steps.type.dtype))
    rest = b(Expand((2 * D,)), constant(b, 0.0, steps.type.dtype))
    return b(Where(), valid, steps, b(Concat(0), shut, rest))


def _matrix(b: Builder, recurrent: Value, wide: DType, sigmoid: bool) -> Value:
    """``[H, D, 4, D]`` as ``[H, D, 4 D]``."""
    H, D = recurrent.type.shape[:2]
    signed = _signed(b, narrow(b, recurrent, wide), sigmoid)
    return b(Reshape((H, D, 4 * D)), signed)


def _signed(b: Builder, gates: Value, sigmoid: bool) -> Value:
    return b(Mul(), gates, constant(b, _SIGNS, gates.type.dtype)) if sigmoid else gates


def _mask(b: Builder, valid: Value) -> Value:
    """``[B, S]`` as ``[S, 1, B, 1]``."""
    return b(Unsqueeze((1, 3)), b(Transpose((1, 0)), valid))
