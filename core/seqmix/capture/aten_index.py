"""Rules for tensors made of nothing, and for gathers, scatters and index tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Add,
    Equal,
    Expand,
    Gather,
    GatherElements,
    GreaterEqual,
    Iota,
    LessEqual,
    Mul,
    Reshape,
    Slice,
    Transpose,
    Unsqueeze,
    Where,
    constant,
)

__all__ = ["Indexed", "indexed", "trimmed"]


@aten("arange", "arange.start", "arange.start_step")
def _arange(c: Call, *ends: Any, **options: Any) -> Value:
    start, step = (ends[0] if len(ends) > 1 else 0), (ends[2] if len(ends) > 2 else 1)
    exact = c.dtype if c.dtype[0] == "i" else "i64"
    whole = all(isinstance(n, int | Dim) for n in (start, step))
    if not whole:
        exact = c.dtype
    out = c.b(Iota(c.shape[0], exact))
    if step != 1:
        out = c.b(Mul(), out, c.scalar(step, exact))
    if start != 0:
        out = c.b(Add(), out, c.scalar(start, exact))
    return c.cast(out, c.dtype)


@aten("full", "full_like", "new_full")
def _full(c: Call, like: Any, *rest: Any, **options: Any) -> Value:
    return _filled(c, rest[-1] if rest else options["fill_value"])


@aten("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty")
def _zeros(c: Call, *rest: Any, **options: Any) -> Value:
    return _filled(c, 0)


@aten("ones", "ones_like", "new_ones")
def _ones(c: Call, *rest: Any, **options: Any) -> Value:
    return _filled(c, 1)


@aten("scalar_tensor")
def _scalar_tensor(c: Call, value: Any, **options: Any) -> Value:
    return c.scalar(value, c.dtype)


@aten("fill.Scalar", "fill.Tensor")
def _fill(c: Call, x: Value, value: Any) -> Value:
    return _filled(c, value)


def _filled(c: Call, value: Any) -> Value:
    scalar = c.operand(value, c.dtype)
    return c.b(Expand(c.shape), scalar) if c.shape else scalar


@aten("tril")
def _tril(c: Call, x: Value, diagonal: int = 0) -> Value:
    return _triangle(c, x, diagonal, lower=True)


@aten("triu")
def _triu(c: Call, x: Value, diagonal: int = 0) -> Value:
    return _triangle(c, x, diagonal, lower=False)


def _triangle(c: Call, x: Value, diagonal: int, *, lower: bool) -> Value:
    """``x`` with 0 on one side of a diagonal."""
    rows, columns = (c.b(Iota(size)) for size in c.shape[-2:])
    edge = c.b(Add(), c.b(Unsqueeze((1,)), rows), c.scalar(diagonal, "i64"))
    kept = c.b(LessEqual() if lower else GreaterEqual(), c.b(Unsqueeze((0,)), columns), edge)
    return c.b(Where(), kept, x, c.scalar(0, c.dtype))


@aten("embedding")
def _embedding(c: Call, weight: Value, ids: Value, *rest: Any, **options: Any) -> Value:
    return c.b(Gather(0), weight, ids)


@aten("index_select")
def _index_select(c: Call, x: Value, axis: int, index: Value) -> Value:
    return c.b(Gather(axis % x.type.rank), x, index)


@aten("gather")
def _gather(c: Call, x: Value, axis: int, index: Value, **options: Any) -> Value:
    axis = axis % x.type.rank
    return c.b(GatherElements(axis), trimmed(c, x, index, axis), index)


@aten("take_along_dim")
def _take_along(c: Call, x: Value, index: Value, axis: int) -> Value:
    return _gather(c, x, axis, index)


def trimmed(c: Call, x: Value, index: Value, axis: int) -> Value:
    """``x`` cut to the index on all other axes: torch lets the index be smaller there."""
    for other, size in enumerate(index.type.shape):
        if other != axis and x.type.shape[other] != size:
            x = c.b(Slice(other, 0, size), x)
    return x


@dataclass(frozen=True)
class Indexed:
    """``x`` prepared for one index: the indexed axes joined at ``first``, in the order ``perm``.

    ``split`` is the shape before the axes were joined.
    """

    x: Value
    index: Value
    first: int
    split: tuple[Size, ...]
    perm: tuple[int, ...]


def indexed(c: Call, x: Value, indices: list[Value | None]) -> Indexed:
    """Several index tensors as one index into their axes joined.

    As in numpy, the axes of the index stand where the indexed ones stood if these are adjacent,
    else in front.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    found = [index for index in indices if index is not None]
    perm = tuple(range(x.type.rank))
    if axes != list(range(axes[0], axes[0] + len(axes))):
        perm = (*axes, *(axis for axis in perm if axis not in axes))
        x, axes = c.b(Transpose(perm), x), list(range(len(axes)))
    first, shape = axes[0], x.type.shape
    flat = _wrapped(c, found[0], shape[first])
    joined = shape[first]
    for axis, index in zip(axes[1:], found[1:], strict=True):
        scaled = c.b(Mul(), flat, c.scalar(shape[axis], "i64"))
        flat = c.b(Add(), scaled, _wrapped(c, index, shape[axis]))
        joined = joined * shape[axis]
    if len(axes) > 1:
        x = c.b(Reshape((*shape[:first], joined, *shape[axes[-1] + 1 :])), x)
    return Indexed(x, flat, first, shape, perm)


@aten("index.Tensor")
def _index(c: Call, x: Value, indices: list[Value | None]) -> Value:
    if any(index is not None and index.type.dtype == "bool" for index in indices):
        raise c.refuse(
            "the size of x[mask] depends on values", "use torch.where, or gather by an index"
        )
    found = indexed(c, x, indices)
    return c.b(Gather(found.first), found.x, found.index)


@aten("take")
def _take(c: Call, x: Value, index: Value) -> Value:
    total: Size = math.prod(x.type.shape)
    return c.b(Gather(0), c.b(Reshape((total,)), x), _wrapped(c, index, total))


def _wrapped(c: Call, index: Value, size: Size) -> Value:
    """An index as i64 that counts from the front, as torch allows negative ones."""
    index = c.cast(index, "i64")
    below = c.b(LessEqual(), index, c.scalar(-1, "i64"))
    return c.b(Where(), below, c.b(Add(), index, c.scalar(size, "i64")), index)


@aten("diagonal")
def _diagonal(c: Call, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    rank, size = x.type.rank, x.type.shape[first]
    if offset or x.type.shape[second] != size:
        raise c.refuse("only main diagonals of square axes are in the IR", "gather it")
    rest = [axis for axis in range(rank) if axis not in (first % rank, second % rank)]
    x = c.b(Transpose((first % rank, second % rank, *rest)), x)
    x = c.b(Reshape((size * size, *x.type.shape[2:])), x)
    steps = c.b(Mul(), c.b(Iota(size)), c.scalar(size + 1, "i64"))
    out = c.b(Gather(0), x, steps)
    return c.b(Transpose((*range(1, out.type.rank), 0)), out) if out.type.rank > 1 else out


@aten("one_hot")
def _one_hot(c: Call, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise c.refuse("one_hot without a number of classes depends on values", "pass num_classes")
    return c.cast(c.b(Equal(), c.b(Unsqueeze((x.type.rank,)), x), c.b(Iota(classes))), "i64")


@aten("eye", "eye.m")
def _eye(c: Call, *sizes: Any, **options: Any) -> Value:
    rows, columns = (c.b(Iota(size)) for size in c.shape)
    return c.cast(c.b(Equal(), c.b(Unsqueeze((1,)), rows), columns), c.dtype)


@aten("linspace")
def _linspace(c: Call, start: Any, end: Any, steps: Any, **options: Any) -> Value:
    if not isinstance(steps, int) or not all(isinstance(n, int | float) for n in (start, end)):
        raise c.refuse("linspace of symbolic sizes is not in the IR", "scale an arange")
    step = (end - start) / max(steps - 1, 1)
    return constant(c.b, tuple(float(start + i * step) for i in range(steps)), c.dtype)
