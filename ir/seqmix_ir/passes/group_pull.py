"""Which elements of its operands an element of an op's result is made of.

Layout ops are index maps: an element of the result is an element of one operand, at a place that
is known. Ops of single elements read every operand at the place itself, as far as it broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.arithmetic import Binary
from seqmix_ir.ops.cast import Cast
from seqmix_ir.ops.clip_gradient import ClipGradient
from seqmix_ir.ops.elementwise import Unary
from seqmix_ir.ops.logic import Where
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_ir.passes.group_index import At, Condition, Index, Looked, fixed, regrouped

__all__ = [
    "LAYOUT",
    "SOURCES",
    "Part",
    "broadcast_at",
    "follow",
    "is_layout",
    "is_pointwise",
    "parts_of",
    "reduced_at",
]

LAYOUT = frozenset(
    {
        "concat", "expand", "gather", "gather_elements", "pad", "reshape", "slice", "squeeze",
        "transpose", "unsqueeze",
    }
)  # fmt: skip
"""Ops that move elements and compute nothing."""

SOURCES = frozenset({"iota", "size"})
"""Ops without operands whose elements follow from their place; scalar constants are too."""

_POINTWISE: tuple[type[OpDef], ...] = (Unary, Binary, Where, Cast, ClipGradient)


@dataclass(frozen=True, slots=True)
class Part:
    """A value to read at a place, where all conditions hold; without a value a constant."""

    value: Value | None
    at: At
    conditions: tuple[Condition, ...] = ()


def is_layout(op: Op) -> bool:
    """Whether the op is an index map: a layout op, or a source of elements."""
    scalar = op.name == "constant" and op.results[0].type.rank == 0
    return op.name in LAYOUT or op.name in SOURCES or scalar


def is_pointwise(op: Op) -> bool:
    """Whether an element of the result is a function of single elements."""
    return isinstance(op.defn, _POINTWISE)


def broadcast_at(at: At, value: Value) -> At:
    """The place in an operand that broadcasts up to a result read at ``at``."""
    lead = len(at) - value.type.rank
    shape = value.type.shape
    return tuple(fixed(0) if n == 1 else i for i, n in zip(at[lead:], shape, strict=True))


def reduced_at(op: Op, at: At, along: Index) -> At:
    """The place in the operand of a reduction over one axis; ``along`` runs over that axis."""
    defn: Any = op.defn
    (x,) = op.values
    (axis,) = normal_axes(defn.axes, x.type.rank)
    kept = list(at)
    if defn.keepdims:
        kept[axis] = along
        return tuple(kept)
    return (*kept[:axis], along, *kept[axis:])


def parts_of(op: Op, at: At) -> tuple[Part, ...]:
    """What a layout op reads for the element at ``at``; one part's conditions hold at most."""
    parts: tuple[Part, ...] = _PARTS[op.name](op, at)
    return parts


def _one(op: Op, at: At) -> tuple[Part, ...]:
    return (Part(op.values[0], at),)


def _reshape(op: Op, at: At) -> tuple[Part, ...]:
    return _one(op, regrouped(at, op.results[0].type.shape, op.values[0].type.shape))


def _transpose(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    rank = op.values[0].type.rank
    places = {normal_axis(axis, rank): index for axis, index in zip(defn.perm, at, strict=True)}
    return _one(op, tuple(places[axis] for axis in range(rank)))


def _expand(op: Op, at: At) -> tuple[Part, ...]:
    return _one(op, broadcast_at(at, op.values[0]))


def _slice(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    axis = normal_axis(defn.axis, len(at))
    moved = at[axis].times(defn.step).plus(defn.start)
    return _one(op, (*at[:axis], moved, *at[axis + 1 :]))


def _pad(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    (x,) = op.values
    axis = normal_axis(defn.axis, len(at))
    moved = at[axis].plus(_minus(defn.before))
    inside = Condition(moved, 0, x.type.shape[axis])
    return Part(x, (*at[:axis], moved, *at[axis + 1 :]), (inside,)), Part(None, at)


def _concat(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    axis = normal_axis(defn.axis, len(at))
    parts, start = [], fixed(0).constant
    for x in op.values:
        size = x.type.shape[axis]
        moved = at[axis].plus(_minus(start))
        inside = Condition(moved, 0, size)
        parts.append(Part(x, (*at[:axis], moved, *at[axis + 1 :]), (inside,)))
        start = start + size
    return tuple(parts)


def _gather(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    data, indices = op.values
    axis, rank = normal_axis(defn.axis, data.type.rank), indices.type.rank
    looked = Looked(indices, at[axis : axis + rank], data.type.shape[axis])
    there = Index(((looked, 1),))
    return (Part(data, (*at[:axis], there, *at[axis + rank :])),)


def _gather_elements(op: Op, at: At) -> tuple[Part, ...]:
    defn: Any = op.defn
    data, indices = op.values
    axis = normal_axis(defn.axis, data.type.rank)
    there = Index(((Looked(indices, at, data.type.shape[axis]), 1),))
    return (Part(data, (*at[:axis], there, *at[axis + 1 :])),)


def _minus(size: Size) -> Size:
    return size * -1


_PARTS: dict[str, Any] = {
    "concat": _concat,
    "expand": _expand,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _reshape,
    "transpose": _transpose,
    "unsqueeze": _reshape,
}


def follow(
    value: Value,
    at: At,
    reads: Callable[[Value, At], list[tuple[Value, At]]],
    seen: set[tuple[Value, At]],
) -> None:
    """Go back from a value at a place through what ``reads`` says that it is made of.

    Every value at every place is looked at once, those in ``seen`` not again; ``seen`` grows.
    """
    waiting = [(value, at)]
    while waiting:
        what = waiting.pop()
        if what not in seen:
            seen.add(what)
            waiting += reads(*what)
