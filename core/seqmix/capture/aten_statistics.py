"""Rules for variance, standard deviation and norms of vectors, over some axes or all."""

from __future__ import annotations

import math
from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Abs,
    Add,
    Cast,
    Div,
    Equal,
    Exp,
    Log,
    Maximum,
    Mul,
    NotEqual,
    Pow,
    Reduce,
    Reshape,
    Sqrt,
    Sub,
    Where,
)
from seqmix_ir.ops.precision import widen

__all__: list[str] = []


@aten("var", "var.dim", "var.correction")
def _var(c: Call, x: Value, *given: Any, **options: Any) -> Value:
    return c.cast(_moments(c, x, given, options)[0], c.dtype)


@aten("std", "std.dim", "std.correction")
def _std(c: Call, x: Value, *given: Any, **options: Any) -> Value:
    return c.cast(c.b(Sqrt(), _moments(c, x, given, options)[0]), c.dtype)


@aten("var_mean", "var_mean.dim", "var_mean.correction")
def _var_mean(c: Call, x: Value, *given: Any, **options: Any) -> tuple[Value, ...]:
    return tuple(c.cast(y, c.types[0].dtype) for y in _moments(c, x, given, options))


@aten("std_mean", "std_mean.dim", "std_mean.correction")
def _std_mean(c: Call, x: Value, *given: Any, **options: Any) -> tuple[Value, ...]:
    variance, mean = _moments(c, x, given, options)
    return tuple(c.cast(y, c.types[0].dtype) for y in (c.b(Sqrt(), variance), mean))


def _moments(c: Call, x: Value, given: tuple[Any, ...], options: Any) -> tuple[Value, Value]:
    """Variance and mean, in float32 at least.

    The sum of squares is divided by the number of elements less the correction, which torch calls
    ``unbiased`` where it is 1 or 0.
    """
    rest = list(given)
    axes = None if rest and isinstance(rest[0], bool) else rest.pop(0) if rest else None
    axes = options.get("dim", axes)
    unbiased = rest.pop(0) if rest else options.get("unbiased", True)
    correction = options.get("correction", 1 if unbiased else 0)
    correction = 1 if correction is None else correction
    keepdims = rest.pop(0) if rest else options.get("keepdim", False)
    normal = _axes(x, axes)
    wide = widen(c.b, x)
    mean = c.b(Reduce("mean", normal, True), wide)
    gap = c.b(Sub(), wide, mean)
    total = c.b(Reduce("sum", normal, keepdims), c.b(Mul(), gap, gap))
    variance = c.b(Div(), total, _degrees(c, x, normal, correction, wide))
    return variance, mean if keepdims else c.b(Reshape(variance.type.shape), mean)


def _degrees(c: Call, x: Value, axes: tuple[int, ...], correction: Any, wide: Value) -> Value:
    """The number of elements less the correction, 0 at least."""
    count: Size = 1
    for axis in axes:
        count = count * x.type.shape[axis]
    dtype = wide.type.dtype
    if isinstance(count, int):
        return c.scalar(max(count - correction, 0), dtype)
    free = c.b(Sub(), c.scalar(count, dtype), c.scalar(correction, dtype))
    return c.b(Maximum(), free, c.scalar(0, dtype))


def _axes(x: Value, axes: Any) -> tuple[int, ...]:
    """Axes counted from the front; all of them when none is named."""
    listed = [axes] if isinstance(axes, int) else list(axes or range(x.type.rank))
    return tuple(sorted(axis % x.type.rank for axis in listed))


@aten("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def _norm(
    c: Call, x: Value, order: Any = 2, axes: Any = None, keepdims: bool = False, **options: Any
) -> Value:
    """``(sum |x|^p)^(1/p)``; of inf the largest, of -inf the smallest, of 0 how many are not 0."""
    order = 2.0 if order is None else float(order)
    wide = widen(c.b, c.cast(x, c.dtype))
    if not wide.type.rank:
        return c.cast(c.b(Abs(), wide), c.dtype)
    normal, dtype = _axes(x, axes), wide.type.dtype
    size = c.b(Abs(), wide)
    if math.isinf(order):
        kind = "max" if order > 0 else "min"
        return c.cast(c.b(Reduce(kind, normal, keepdims), size), c.dtype)
    if order == 0:
        counted = c.b(Cast(dtype), c.b(NotEqual(), wide, c.scalar(0, dtype)))
        return c.cast(c.b(Reduce("sum", normal, keepdims), counted), c.dtype)
    total = c.b(Reduce("sum", normal, keepdims), _power(c, wide, size, order))
    return c.cast(_root(c, total, order), c.dtype)


@aten("linalg_norm")
def _linalg_norm(
    c: Call, x: Value, order: Any = None, axes: Any = None, keepdims: bool = False, **options: Any
) -> Value:
    count = len(axes) if isinstance(axes, list | tuple) else 1 if axes is not None else 0
    if order is not None and (count == 2 or (count == 0 and x.type.rank == 2)):
        raise c.refuse("matrix norms are not in the IR", "use vector_norm")
    return _norm(c, x, order, axes, keepdims, **options)


def _power(c: Call, x: Value, size: Value, order: float) -> Value:
    if order == 1:
        return size
    if order == 2:
        return c.b(Mul(), x, x)
    return c.b(Pow(), size, c.scalar(order, x.type.dtype))


def _root(c: Call, x: Value, order: float) -> Value:
    if order == 1:
        return x
    if order == 2:
        return c.b(Sqrt(), x)
    return c.b(Pow(), x, c.scalar(1 / order, x.type.dtype))


@aten("count_nonzero", "count_nonzero.dim_IntList")
def _count_nonzero(c: Call, x: Value, axes: Any = None) -> Value:
    dtype = x.type.dtype
    truth = x if dtype == "bool" else c.b(NotEqual(), x, c.scalar(0, dtype))
    if not x.type.rank:
        return c.cast(truth, "i64")
    return c.b(Reduce("sum", _axes(x, axes), False), c.cast(truth, "i64"))


@aten("logsumexp")
def _logsumexp(c: Call, x: Value, axes: Any, keepdims: bool = False) -> Value:
    x = c.cast(x, c.dtype)
    normal = _axes(x, axes)
    top = c.b(Reduce("max", normal, True), x)
    # An infinite top must not be subtracted from itself: of -inf alone the result is -inf.
    endless = c.b(Equal(), c.b(Abs(), top), c.scalar(math.inf, c.dtype))
    top = c.b(Where(), endless, c.scalar(0, c.dtype), top)
    total = c.b(Reduce("sum", normal, True), c.b(Exp(), c.b(Sub(), x, top)))
    out = c.b(Add(), top, c.b(Log(), total))
    return out if keepdims else c.b(Reshape(c.shape), out)


@aten("cosine_similarity")
def _cosine_similarity(c: Call, x: Value, y: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    """The product of both after each is divided by its norm, ``eps`` at least."""
    parts = []
    for value in (x, y):
        wide = widen(c.b, c.cast(value, c.dtype))
        square = c.b(Reduce("sum", (axis % wide.type.rank,), True), c.b(Mul(), wide, wide))
        floor = c.scalar(eps, wide.type.dtype)
        parts.append(c.b(Div(), wide, c.b(Maximum(), c.b(Sqrt(), square), floor)))
    product = c.b(Mul(), *parts)
    return c.cast(c.b(Reduce("sum", (axis % product.type.rank,), False), product), c.dtype)
