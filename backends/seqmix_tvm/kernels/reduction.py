"""Kernels with sums along axes: reductions, the place of the largest, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_ir.types import FLOATS
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import LANES, Kernel
from seqmix_tvm.place import COMPUTED
from seqmix_tvm.rules.layout import number

__all__ = ["accumulated", "argmax", "cumsum", "fold_row", "reduce"]

Combine = Callable[[Any, Any], Any]

_BITS = {"i64": 64, "i32": 32, "i8": 8}
_COMBINE: dict[str, Combine] = {
    "sum": lambda x, y: x + y,
    "mean": lambda x, y: x + y,
    "prod": lambda x, y: x * y,
    "max": f.larger,
    "min": f.smaller,
    "any": tvm.either,
    "all": tvm.both,
}


def accumulated(op: Op, value: Value) -> str:
    """The type in which an op adds up elements of an operand."""
    dtype = COMPUTED[value.type.dtype]
    wide = op.defn.attributes().get("accumulate") == "f64" and value.type.dtype in FLOATS
    return "float64" if wide else dtype


def reduce(kernel: Kernel, op: Op) -> None:
    """``reduce``: vectors of partial results along the last axis, else one after another."""
    (x,), (y,) = op.values, op.results
    has = op.defn.attributes()
    axes = normal_axes(has["axes"], x.type.rank)
    dtype = accumulated(op, x) if has["kind"] in ("sum", "mean", "prod") else COMPUTED[x.type.dtype]
    start, combine = _neutral(has["kind"], x, dtype), _COMBINE[has["kind"]]
    kept = [axis for axis in range(x.type.rank) if axis not in axes]
    held = kernel.held(x)
    shape = x.type.shape
    loops = [axis for axis in kept if axis not in held]
    count: Size = 1
    for axis in axes:
        count = count * shape[axis]

    def row(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(loops, counters, strict=True))}

        def element(inner: tuple[Any, ...]) -> Any:
            full = {**at, **dict(zip(axes, inner, strict=True))}
            index = kernel.frame.index(shape, tuple(full[a] for a in range(len(shape))))
            return tvm.cast(dtype, kernel.frame.at(x, index))

        total = _fold(kernel, [shape[a] for a in axes], element, start, combine, dtype)
        if has["kind"] == "mean":
            total = total / f.from_integer(dtype, kernel.sizes(count))
        here = tuple(at[axis] for axis in kept)
        if has["keepdims"]:
            here = tuple(at.get(a, tvm.integer(0)) for a in range(len(shape)))
        total = tvm.cast(COMPUTED[y.type.dtype], total)
        kernel.once(lambda: kernel.sink(kernel.frame.index(y.type.shape, here), total))

    # Rows that lie side by side are read side by side.
    over = kernel.team_rows if len(shape) - 1 in axes else kernel.rows
    over(tuple(shape[a] for a in loops), row, kernel.cost, count)


def _neutral(kind: str, x: Value, dtype: str) -> Any:
    """What the result over no elements is."""
    if kind in ("max", "min"):
        if x.type.dtype in FLOATS:
            return number(-math.inf if kind == "max" else math.inf, dtype)
        bits = _BITS.get(x.type.dtype)
        if bits is None:
            return tvm.integer(0 if kind == "max" else 255, dtype)
        lowest = -(1 << (bits - 1))
        return tvm.integer(lowest if kind == "max" else -lowest - 1, dtype)
    return number({"sum": 0, "mean": 0, "prod": 1, "any": 0, "all": 1}[kind], dtype)


def _fold(
    kernel: Kernel,
    extents: list[Size],
    element: Callable[[tuple[Any, ...]], Any],
    start: Any,
    combine: Combine,
    dtype: str,
) -> Any:
    """All elements combined; the last of the axes in vectors."""
    total = kernel.writer.local(dtype, 1)
    zero = tvm.integer(0)
    kernel.writer.store(total, zero, start)

    def along(outer: tuple[Any, ...]) -> None:
        part = fold_row(kernel, extents[-1], lambda j: element((*outer, j)), start, combine, dtype)
        kernel.writer.store(total, zero, combine(total[zero], part))

    kernel.writer.nest([kernel.sizes(s) for s in extents[:-1]], along)
    return kernel.writer.bind(total[zero], "total")


def fold_row(
    kernel: Kernel,
    length: Size,
    element: Callable[[Any], Any],
    start: Any,
    combine: Combine,
    dtype: str,
    lanes: int = 2 * LANES,
) -> Any:
    """The elements of one axis combined, ``lanes`` partial results at a time."""
    if kernel.lane is not None:
        return kernel.fold(length, element, start, combine, dtype)
    writer, zero = kernel.writer, tvm.integer(0)
    total = writer.local(dtype, 1)
    writer.store(total, zero, start)
    if (
        kernel.vectors == "serial"
        or not dtype.startswith("float")
        or (isinstance(length, int) and length < lanes)
    ):
        with writer.loop(kernel.sizes(length), name="j") as j:
            writer.store(total, zero, combine(total[zero], element(j)))
        return writer.bind(total[zero], "total")
    parts = writer.local(dtype, lanes)
    with writer.loop(lanes, "vectorized", "l") as lane:
        writer.store(parts, lane, start)

    def step(first: Any, kind: str) -> None:
        if kind == "one":
            writer.store(total, zero, combine(total[zero], element(first)))
            return
        with writer.loop(lanes, "vectorized", "l") as lane:
            writer.store(parts, lane, combine(parts[lane], element(first + lane)))

    kernel.chunks(length, step, lanes)
    for lane in range(lanes):
        writer.store(total, zero, combine(total[zero], parts[tvm.integer(lane)]))
    return writer.bind(total[zero], "total")


def argmax(kernel: Kernel, op: Op) -> None:
    """``argmax``: the first of the largest, the first NaN if there is one."""
    (x,), (y,) = op.values, op.results
    has = op.defn.attributes()
    axis = normal_axis(has["axis"], x.type.rank)
    shape, held = x.type.shape, kernel.held(x)
    loops = [a for a in range(len(shape)) if a != axis and a not in held]
    dtype, zero = COMPUTED[x.type.dtype], tvm.integer(0)

    def row(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(loops, counters, strict=True))}
        writer = kernel.writer
        best, place = writer.local(dtype, 1), writer.local("int64", 1)

        def element(j: Any) -> Any:
            full = {**at, axis: j}
            index = kernel.frame.index(shape, tuple(full[a] for a in range(len(shape))))
            return kernel.frame.at(x, index)

        writer.store(best, zero, element(zero))
        writer.store(place, zero, zero)
        with writer.loop(kernel.sizes(shape[axis]), name="j") as j:
            found = element(j)
            wins = found > best[zero]
            if x.type.dtype in FLOATS:
                wins = tvm.either(
                    wins, tvm.both(f.is_nan(found), tvm.negated(f.is_nan(best[zero])))
                )
                wins = tvm.both(wins, tvm.negated(f.is_nan(best[zero])))
            wins = writer.bind(wins, "wins")
            writer.store(place, zero, tvm.select(wins, j, place[zero]))
            writer.store(best, zero, tvm.select(wins, found, best[zero]))
        here = [at.get(a, zero) for a in range(len(shape)) if has["keepdims"] or a != axis]
        kernel.sink(kernel.frame.index(y.type.shape, tuple(here)), place[zero])

    kernel.rows(tuple(shape[a] for a in loops), row, kernel.cost, shape[axis])


def cumsum(kernel: Kernel, op: Op) -> None:
    """``cumsum``: one running sum per row."""
    (x,), (y,) = op.values, op.results
    has = op.defn.attributes()
    axis = normal_axis(has["axis"], x.type.rank)
    shape, held = x.type.shape, kernel.held(x)
    loops = [a for a in range(len(shape)) if a != axis and a not in held]
    dtype, zero = accumulated(op, x), tvm.integer(0)
    length = kernel.sizes(shape[axis])

    def row(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(loops, counters, strict=True))}
        writer = kernel.writer
        total = writer.local(dtype, 1)
        writer.store(total, zero, number(0, dtype))
        with writer.loop(length, name="t") as t:
            place = length - tvm.integer(1) - t if has["reverse"] else t
            full = {**at, axis: place}
            index = kernel.frame.index(shape, tuple(full[a] for a in range(len(shape))))
            element = tvm.cast(dtype, kernel.frame.at(x, index))
            before = writer.bind(total[zero], "before")
            after = writer.bind(before + element, "after")
            writer.store(total, zero, after)
            shown = tvm.cast(COMPUTED[y.type.dtype], before if has["exclusive"] else after)
            kernel.sink(index, shown)

    kernel.rows(tuple(shape[a] for a in loops), row, kernel.cost, shape[axis])
