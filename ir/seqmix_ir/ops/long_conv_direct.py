"""A long convolution without transforms: a product with all shifts, or a depthwise convolution.

B batch, D channels, C filters per channel, S sequence, P past, T = P + S, L filter taps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqmix_ir.dims import Size, minimum_size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Maximum, Minimum, Sub
from seqmix_ir.ops.constants import Iota, constant, size_value
from seqmix_ir.ops.conv1d import Conv1d
from seqmix_ir.ops.index import Gather
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.logic import And, GreaterEqual, Less, Where
from seqmix_ir.ops.precision import narrow, widen
from seqmix_ir.ops.segments import Concat, Pad, Slice
from seqmix_ir.ops.shape import Transpose, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["decompose_conv", "decompose_direct", "joined_sequence", "once_per_filter"]


def decompose_direct(b: Builder, op: Op) -> tuple[Value, ...]:
    """``[C D, S, T]`` times ``[C D, T, B]``: no output sees a later input, even by rounding."""
    x, filter, seq = joined_sequence(b, op)
    seq = once_per_filter(b, seq, filter)
    S = x.type.shape[2]
    shifts = _shifts(b, filter, S, seq.type.shape[2])
    y = b(Matmul(), shifts, b(Transpose((1, 2, 0)), seq))
    return (narrow(b, b(Transpose((2, 0, 1)), y), x.type.dtype),)


def decompose_conv(b: Builder, op: Op) -> tuple[Value, ...]:
    """A depthwise ``conv1d`` with the filter turned around; the number of channels is known."""
    x, filter, seq = joined_sequence(b, op)
    S, rows = x.type.shape[2], filter.type.shape[0]
    if not isinstance(rows, int):
        raise IRError(f"{op.loc}: 'x' is {x.type}; the number of channels must be known")
    seq = once_per_filter(b, seq, filter)
    T = seq.type.shape[2]
    L = minimum_size(filter.type.shape[1], T)
    backwards = b(Sub(), size_value(b, L - 1, "i64"), b(Iota(L)))
    taps = b(Unsqueeze((1,)), b(Gather(1), filter, backwards))
    reached = b(Slice(2, T - S, T + L - 1), b(Pad(2, L - 1, 0), seq))
    return (narrow(b, b(Conv1d(groups=rows), reached, taps, None), x.type.dtype),)


def joined_sequence(b: Builder, op: Op) -> tuple[Value, Value, Value]:
    """X as it is, the filter ``[C D, L]`` and ``[history, x] [B, D, T]``, both widened."""
    x, filter, history = op.operands
    if x is None or filter is None:
        raise IRError(f"{op.loc}: 'long_conv' lacks 'x' or 'filter'")
    seq = x if history is None else b(Concat(2), history, x)
    return x, widen(b, filter), widen(b, seq)


def once_per_filter(b: Builder, x: Value, filter: Value) -> Value:
    """``x [B, D, ..]`` behind each other once for each of the C filters of a channel."""
    D, rows = x.type.shape[1], filter.type.shape[0]
    if rows == D or not isinstance(D, int) or not isinstance(rows, int):
        return x
    return b(Concat(1), *[x] * (rows // D))


def _shifts(b: Builder, filter: Value, S: Size, T: Size) -> Value:
    """``[C D, S, T]``: the tap that takes sample j to output t, 0 where there is none."""
    L = filter.type.shape[1]
    zero, taps = constant(b, 0, "i64"), size_value(b, L, "i64")
    at = b(Iota(T)) if S == T else _range_from(b, T - S, S)
    tap = b(Sub(), b(Unsqueeze((1,)), at), b(Unsqueeze((0,)), b(Iota(T))))
    present = b(And(), b(GreaterEqual(), tap, zero), b(Less(), tap, taps))
    last = b(Sub(), taps, constant(b, 1, "i64"))
    inside = b(Minimum(), b(Maximum(), tap, zero), last)
    picked = b(Gather(1), filter, inside)
    return b(Where(), present, picked, constant(b, 0.0, filter.type.dtype))


def _range_from(b: Builder, start: Size, length: Size) -> Value:
    """``[start, start + 1, ...]``: where the outputs stand in the joined sequence."""
    return b(Add(), b(Iota(length)), size_value(b, start, "i64"))
