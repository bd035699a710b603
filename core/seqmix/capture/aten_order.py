"""Rules for sorting, selection by size, and running extrema, products and sums."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    ArgMax,
    ArgMin,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    Equal,
    Iota,
    LogCumSumExp,
    NotEqual,
    Or,
    Reduce,
    Reshape,
    Slice,
    Squeeze,
    TopK,
    Unsqueeze,
    Where,
    constant,
)
from seqmix_ir.types import FLOATS

__all__: list[str] = []


@aten("topk")
def _topk(
    c: Call, x: Value, k: Size, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    return _first(c, x, k, axis, largest)


@aten("sort")
def _sort(c: Call, x: Value, axis: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _first(c, x, None, axis, descending)


@aten("sort.stable")
def _sort_stable(
    c: Call, x: Value, *, stable: bool = True, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _first(c, x, None, dim, descending)


@aten("argsort")
def _argsort(c: Call, x: Value, axis: int = -1, descending: bool = False) -> Value:
    return _first(c, x, None, axis, descending)[1]


@aten("argsort.stable")
def _argsort_stable(
    c: Call, x: Value, *, stable: bool = True, dim: int = -1, descending: bool = False
) -> Value:
    return _first(c, x, None, dim, descending)[1]


@aten("msort")
def _msort(c: Call, x: Value) -> Value:
    return _first(c, x, None, 0, False)[0]


@aten("kthvalue")
def _kthvalue(
    c: Call, x: Value, k: int, axis: int = -1, keepdims: bool = False
) -> tuple[Value, ...]:
    axis = axis % x.type.rank
    found = _first(c, x, k, axis, False)
    last = [c.b(Slice(axis, k - 1, k), y) for y in found]
    return tuple(y if keepdims else c.b(Squeeze((axis,)), y) for y in last)


def _first(c: Call, x: Value, k: Size | None, axis: int, largest: bool) -> tuple[Value, ...]:
    """The first ``k`` elements in order and their indices; all of them without ``k``."""
    if x.type.rank == 0:
        raise c.refuse("a scalar has no order", "unsqueeze it")
    axis, dtype = axis % x.type.rank, x.type.dtype
    size = x.type.shape[axis] if k is None else k
    number = c.cast(x, "i32") if dtype == "bool" else x
    values, indices = c.b.emit(TopK(size, axis, largest), number)
    return c.cast(values, dtype), indices


@aten("max.dim")
def _max_dim(c: Call, x: Value, axis: int, keepdims: bool = False) -> tuple[Value, ...]:
    return _extremum(c, "max", x, axis, keepdims)


@aten("min.dim")
def _min_dim(c: Call, x: Value, axis: int, keepdims: bool = False) -> tuple[Value, ...]:
    return _extremum(c, "min", x, axis, keepdims)


def _extremum(c: Call, kind: str, x: Value, axis: int, keepdims: bool) -> tuple[Value, ...]:
    axis, dtype = axis % x.type.rank, x.type.dtype
    where = (ArgMax if kind == "max" else ArgMin)(axis, keepdims)
    number = c.cast(x, "i32") if dtype == "bool" else x
    return c.cast(c.b(Reduce(kind, (axis,), keepdims), number), dtype), c.b(where, number)


@aten("aminmax")
def _aminmax(
    c: Call, x: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, ...]:
    axes = tuple(range(x.type.rank)) if dim is None else (dim % x.type.rank,)
    return c.b(Reduce("min", axes, keepdim), x), c.b(Reduce("max", axes, keepdim), x)


@aten("argmax")
def _argmax(c: Call, x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    return _place(c, ArgMax, x, axis, keepdims)


@aten("argmin")
def _argmin(c: Call, x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    return _place(c, ArgMin, x, axis, keepdims)


def _place(
    c: Call, kind: type[ArgMax | ArgMin], x: Value, axis: int | None, keepdims: bool
) -> Value:
    """Without an axis, the index counts through the flattened tensor."""
    if axis is not None and x.type.rank:
        return c.b(kind(axis % x.type.rank, keepdims), x)
    total: Size = 1
    for size in x.type.shape:
        total = total * size
    index = c.b(kind(0, False), c.b(Reshape((total,)), x))
    return c.b(Reshape(c.shape), index) if c.shape else index


@aten("cumsum")
def _cumsum(c: Call, x: Value, axis: int, **options: Any) -> Value:
    return _running(c, CumSum, x, axis)


@aten("cumprod")
def _cumprod(c: Call, x: Value, axis: int, **options: Any) -> Value:
    return _running(c, CumProd, x, axis)


@aten("logcumsumexp")
def _logcumsumexp(c: Call, x: Value, axis: int) -> Value:
    return _running(c, LogCumSumExp, x, axis)


def _running(c: Call, kind: type[CumSum | CumProd | LogCumSumExp], x: Value, axis: int) -> Value:
    x = c.cast(x, c.dtype)
    return c.b(kind(axis % x.type.rank), x) if x.type.rank else x


@aten("cummax")
def _cummax(c: Call, x: Value, axis: int) -> tuple[Value, ...]:
    return _running_extremum(c, CumMax(axis % x.type.rank), x)


@aten("cummin")
def _cummin(c: Call, x: Value, axis: int) -> tuple[Value, ...]:
    return _running_extremum(c, CumMin(axis % x.type.rank), x)


def _running_extremum(c: Call, defn: CumMax | CumMin, x: Value) -> tuple[Value, ...]:
    """Values, and for each the last place where it was attained so far; NaN is attained anew."""
    values = c.b(defn, x)
    attained = c.b(Equal(), x, values)
    if x.type.dtype in FLOATS:
        attained = c.b(Or(), attained, c.b(NotEqual(), x, x))
    places = c.b(Iota(x.type.shape[defn.axis]))
    after = tuple(range(1, x.type.rank - defn.axis))
    column = c.b(Unsqueeze(after), places) if after else places
    reached = c.b(Where(), attained, column, constant(c.b, 0, "i64"))
    return values, c.b(CumMax(defn.axis), reached)
