"""Rules that put elements at indices: scatter, index_add, index_put and their relatives."""

from __future__ import annotations

import math
from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix.capture.aten_index import indexed, trimmed
from seqmix.capture.aten_shape import from_front
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Add,
    Concat,
    Div,
    Expand,
    Greater,
    Maximum,
    Mul,
    Neg,
    Reshape,
    ScatterElements,
    Slice,
    Transpose,
    Unsqueeze,
    Where,
)
from seqmix_ir.types import FLOATS

__all__: list[str] = []


@aten("scatter.src")
def _scatter(c: Call, x: Value, axis: int, index: Value, source: Value) -> Value:
    return _scattered(c, x, axis, index, source, "none")


@aten("scatter.value")
def _scatter_value(c: Call, x: Value, axis: int, index: Value, value: Any) -> Value:
    return _scattered(c, x, axis, index, _spread(c, value, x, index), "none")


@aten("scatter.reduce", "scatter.value_reduce")
def _scatter_reduced(
    c: Call, x: Value, axis: int, index: Value, source: Any, *, reduce: str
) -> Value:
    if reduce != "add":
        raise c.refuse(f"scatter with reduce='{reduce}' is not in the IR", "use 'add'")
    source = source if isinstance(source, Value) else _spread(c, source, x, index)
    return _scattered(c, x, axis, index, source, "add")


@aten("scatter_add")
def _scatter_add(c: Call, x: Value, axis: int, index: Value, source: Value) -> Value:
    return _scattered(c, x, axis, index, source, "add")


@aten("scatter_reduce.two")
def _scatter_reduce(
    c: Call,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    return _combined(c, x, axis, index, source, reduce, include_self)


@aten("index_reduce")
def _index_reduce(
    c: Call,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    index = _along(c, index, axis % x.type.rank, source)
    return _combined(c, x, axis, index, source, reduce, include_self)


def _combined(
    c: Call, x: Value, axis: int, index: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    """Sums, means and extrema of all that is put in one place, with or without what is there."""
    neutral = {"sum": 0.0, "mean": 0.0, "amax": -math.inf, "amin": math.inf}
    whole = reduce in ("sum", "amax") and include_self
    if reduce not in neutral or not (whole or c.dtype in FLOATS):
        raise c.refuse(
            f"scatter of {c.dtype} with reduce='{reduce}' and include_self={include_self} is not "
            "in the IR",
            "use 'sum' or 'amax', or floats and one of 'mean' and 'amin'",
        )
    kind = "max" if reduce in ("amax", "amin") else "add"
    one = _spread(c, 1, x, index)
    start = c.scalar(1 if include_self else 0, c.dtype)
    if not include_self or reduce == "mean":
        count = _scattered(c, c.b(Expand(x.type.shape), start), axis, index, one, "add")
    base = x
    if not include_self:
        touched = c.b(Greater(), count, c.scalar(0, c.dtype))
        base = c.b(Where(), touched, c.scalar(neutral[reduce], c.dtype), x)
    if reduce == "amin":
        pair = c.b(Neg(), base), c.b(Neg(), source)
        return c.b(Neg(), _scattered(c, pair[0], axis, index, pair[1], kind))
    total = _scattered(c, base, axis, index, source, kind)
    if reduce != "mean":
        return total
    return c.b(Div(), total, c.b(Maximum(), count, c.scalar(1, c.dtype)))


@aten("index_add")
def _index_add(
    c: Call, x: Value, axis: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    if alpha != 1:
        source = c.b(Mul(), source, c.scalar(alpha, c.dtype))
    return _scattered(c, x, axis, _along(c, index, axis % x.type.rank, source), source, "add")


@aten("index_copy")
def _index_copy(c: Call, x: Value, axis: int, index: Value, source: Value) -> Value:
    return _scattered(c, x, axis, _along(c, index, axis % x.type.rank, source), source, "none")


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(c: Call, x: Value, axis: int, index: Value, value: Any) -> Value:
    axis = axis % x.type.rank
    count = index.type.shape[0] if index.type.rank else 1
    shape = (*x.type.shape[:axis], count, *x.type.shape[axis + 1 :])
    source = c.b(Expand(shape), c.operand(value, c.dtype))
    return _scattered(c, x, axis, _along(c, index, axis, source), source, "none")


def _along(c: Call, index: Value, axis: int, source: Value) -> Value:
    """A vector of indices for one axis, repeated over the other axes of ``source``."""
    index = c.cast(index if index.type.rank else c.b(Unsqueeze((0,)), index), "i64")
    after = source.type.rank - 1 - axis
    column = c.b(Reshape((index.type.shape[0], *[1] * after)), index)
    return c.b(Expand(source.type.shape), column)


def _spread(c: Call, value: Any, x: Value, index: Value) -> Value:
    return c.b(Expand(index.type.shape), c.operand(value, x.type.dtype))


def _scattered(c: Call, x: Value, axis: int, index: Value, source: Value, reduction: str) -> Value:
    """Torch lets index and source be smaller than ``x`` on other axes: the rest stays as it is."""
    axis = axis % x.type.rank
    source = trimmed(c, source, index, -1)
    for other, (have, given) in enumerate(zip(x.type.shape, index.type.shape, strict=True)):
        if other != axis and have != given:
            part = c.b(Slice(other, 0, given), x)
            new = _scattered(c, part, axis, index, source, reduction)
            return c.b(Concat(other), new, c.b(Slice(other, given, have), x))
    if x.type.dtype != "bool":
        return c.b(ScatterElements(axis, reduction), x, index, source)
    numbers = c.cast(x, "i32"), c.cast(source, "i32")
    return c.cast(c.b(ScatterElements(axis, reduction), numbers[0], index, numbers[1]), "bool")


@aten("index_put")
def _index_put(
    c: Call, x: Value, indices: list[Value | None], values: Value, accumulate: bool = False
) -> Value:
    if any(index is not None and index.type.dtype == "bool" for index in indices):
        return _put_where(c, x, indices, values, accumulate)
    found = indexed(c, x, indices)
    first, shape, spots = found.first, found.x.type.shape, found.index.type.shape
    wide = (*shape[:first], *spots, *shape[first + 1 :])
    count: Size = math.prod(spots)
    flat = (*shape[:first], count, *shape[first + 1 :])
    source = c.b(Reshape(flat), c.b(Expand(wide), values))
    index = _along(c, c.b(Reshape((count,)), found.index), first, source)
    y = _scattered(c, found.x, first, index, source, "add" if accumulate else "none")
    y = c.b(Reshape(found.split), y) if y.type.shape != found.split else y
    back = tuple(found.perm.index(axis) for axis in range(x.type.rank))
    return y if back == tuple(range(x.type.rank)) else c.b(Transpose(back), y)


def _put_where(
    c: Call, x: Value, indices: list[Value | None], values: Value, accumulate: bool
) -> Value:
    """A mask with the same value, or row of values, wherever it is true."""
    found = [index for index in indices if index is not None]
    after = x.type.rank - len(indices) + 1 - found[0].type.rank
    if len(found) > 1 or indices[-1] is None or values.type.rank > after:
        if math.prod(values.type.shape) != 1 or len(found) > 1:
            raise c.refuse("how many values a mask takes depends on it", "use torch.where")
        values = c.b(Reshape(()), values)
    mask = c.b(Reshape((*found[0].type.shape, *[1] * after)), found[0])
    new = c.b(Add(), x, values) if accumulate else values
    return c.b(Where(), mask, new, x)


@aten("select_scatter")
def _select_scatter(c: Call, x: Value, source: Value, axis: int, index: Size) -> Value:
    axis = axis % x.type.rank
    start = from_front(c, 3, index, x.type.shape[axis])
    return _replaced(c, x, c.b(Unsqueeze((axis,)), source), axis, start)


@aten("slice_scatter")
def _slice_scatter(
    c: Call,
    x: Value,
    source: Value,
    axis: int = 0,
    start: Size | None = None,
    stop: Size | None = None,
    step: int = 1,
) -> Value:
    if step != 1:
        raise c.refuse(f"slice_scatter by steps of {step} is not in the IR", "use index_copy")
    axis = axis % x.type.rank
    return _replaced(c, x, source, axis, from_front(c, 3, start or 0, x.type.shape[axis]))


def _replaced(c: Call, x: Value, source: Value, axis: int, start: Size) -> Value:
    """``x`` with ``source`` in the place of as many elements from ``start`` on."""
    size = x.type.shape[axis]
    stop = start + source.type.shape[axis]
    head, tail = c.b(Slice(axis, 0, start), x), c.b(Slice(axis, stop, size), x)
    return c.b(Concat(axis), head, c.cast(source, c.dtype), tail)
