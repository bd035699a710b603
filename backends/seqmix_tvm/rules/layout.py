"""Ops that move elements without computing: another shape, order, part; and what is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmix.errors import BackendError
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.types import FLOATS
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.frame import Frame, Rule
from seqmix_tvm.place import COMPUTED, Index, reshaped

__all__ = ["FLAT", "RULES"]


def number(value: Any, dtype: str) -> tvm.Expr:
    """A number of the type in which a kernel computes."""
    if dtype.startswith("float"):
        return f.nan(dtype) if value != value else tvm.floating(float(value), dtype)
    return tvm.integer(int(value), dtype)


def _constant(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    value = op.defn.attributes()["value"]
    if isinstance(value, tuple):
        raise BackendError(f"{op.loc}: a constant array has no place in memory")
    return number(value, COMPUTED[op.results[0].type.dtype])


def _size(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    return frame.sizes(op.defn.attributes()["value"])


def _iota(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    dtype = op.results[0].type.dtype
    if dtype in FLOATS:
        return f.from_integer(COMPUTED[dtype], index.axes[0])
    return tvm.cast(COMPUTED[dtype], index.axes[0])


def _reshape(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    (x,) = op.values
    return frame.at(x, _derived(frame, x, index, lambda: reshaped(index, x.type.shape)))


def _transpose(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    (x,) = op.values
    perm = op.defn.attributes()["perm"]

    def make() -> Index:
        axes: list[tvm.Expr] = [None] * len(perm)
        for place, axis in enumerate(perm):
            axes[normal_axis(axis, len(perm))] = index.axes[place]
        return frame.index(x.type.shape, tuple(axes))

    return frame.at(x, _derived(frame, x, index, make, perm))


def _expand(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    return frame.broadcast(op.operands[0], index)


def _slice(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    (x,) = op.values
    has = op.defn.attributes()
    axis = normal_axis(has["axis"], x.type.rank)

    def make() -> Index:
        axes = list(index.axes)
        if has["step"] != 1:
            axes[axis] = axes[axis] * tvm.integer(has["step"])
        if has["start"] != 0:
            axes[axis] = axes[axis] + frame.sizes(has["start"])
        return frame.index(x.type.shape, tuple(axes))

    return frame.at(x, _derived(frame, x, index, make, (axis, has["start"], has["step"])))


def _derived(frame: Frame, x: Value, index: Index, make: Any, more: Any = None) -> Index:
    """An index that follows from another, the same one for the same reason."""
    key = ("derived", frame.writer.keep(index), x.type.shape, more)
    found: Index = frame.writer.once(key, make)
    return found


def _gather(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    data, indices = op.values
    axis = normal_axis(op.defn.attributes()["axis"], data.type.rank)
    rank = indices.type.rank
    inner = index.axes[axis : axis + rank]
    place = frame.at(indices, frame.index(indices.type.shape, inner))
    wrapped = within(frame, place, data, axis)
    axes = (*index.axes[:axis], wrapped, *index.axes[axis + rank :])
    return frame.at(data, frame.index(data.type.shape, axes))


def _gather_elements(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    data, indices = op.values
    axis = normal_axis(op.defn.attributes()["axis"], data.type.rank)
    wrapped = within(frame, frame.at(indices, index), data, axis)
    axes = (*index.axes[:axis], wrapped, *index.axes[axis + 1 :])
    return frame.at(data, frame.index(data.type.shape, axes))


def within(frame: Frame, place: tvm.Expr, data: Value, axis: int) -> tvm.Expr:
    """An index that may count from the end; one that is out of range reads some element."""
    size = frame.sizes(data.type.shape[axis])
    place = tvm.cast("int64", place)
    zero = tvm.integer(0)
    wrapped = tvm.select(place < zero, place + size, place)
    last = tvm.maximum(size - tvm.integer(1), zero)
    return frame.writer.bind(tvm.minimum(tvm.maximum(wrapped, zero), last), "place")


RULES: Mapping[str, Rule] = {
    "constant": _constant,
    "expand": _expand,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "iota": _iota,
    "reshape": _reshape,
    "size": _size,
    "slice": _slice,
    "squeeze": _reshape,
    "transpose": _transpose,
    "unsqueeze": _reshape,
}

FLAT = frozenset({"reshape", "squeeze", "unsqueeze"})
"""Ops that leave every element at its place in memory."""
