"""Which axes of a loop's body are independent of each other: they can be run side by side.

An axis of the carries is followed through every op of the body. Where each op keeps it apart, one
index along it never needs what belongs to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_tvm.place import groups_of_axes, present
from seqmix_tvm.rules.layout import FLAT
from seqmix_tvm.rules.pointwise import RULES as POINTWISE

__all__ = ["follow_axis"]

Found: TypeAlias = "dict[Value, int | None]"
"""Where the axis is in each value; None in those that do not have it."""


class _Mixed(Exception):  # noqa: N818
    """The op combines elements along the axis."""


def follow_axis(body: Block, carries: int, axis: int) -> Found | None:
    """Where an axis of the first carry is in every value of the body; None where it is mixed."""
    size = body.params[0].type.shape[axis]
    found: Found = {}
    for param in body.params:
        shape = param.type.shape
        found[param] = axis if len(shape) > axis and shape[axis] == size else None
    try:
        for op in body.ops:
            place = _follow(op, found)
            found.update(dict.fromkeys(op.results, place))
    except _Mixed:
        return None
    kept = zip(body.params[:carries], body.results[:carries], strict=True)
    if any(found[param] is None or found[param] != found[result] for param, result in kept):
        return None
    return found


def _follow(op: Op, found: Mapping[Value, int | None]) -> int | None:
    places = [None if v is None else found[v] for v in op.operands]
    if all(place is None for place in places):
        return None
    if op.name in POINTWISE or op.name == "expand":
        return _aligned(op, places)
    if op.name in FLAT:
        return _reshaped(op, places[0])
    if op.name not in _FOLLOW:
        raise _Mixed
    return _FOLLOW[op.name](op, places)


def _aligned(op: Op, places: list[int | None]) -> int:
    """Of operands that broadcast: the same place counted from the end, and no repetition."""
    rank = op.results[0].type.rank
    found = set()
    for value, place in zip(op.operands, places, strict=True):
        if value is not None and place is not None:
            moved = place + rank - value.type.rank
            found.add(moved)
            if op.results[0].type.shape[moved] != value.type.shape[place]:
                raise _Mixed
    if len(found) != 1:
        raise _Mixed
    return found.pop()


def _reshaped(op: Op, place: int | None) -> int:
    """The axis must stay an axis of its own."""
    (x,) = op.values
    for old, new in groups_of_axes(x.type.shape, op.results[0].type.shape):
        alone = old.stop - old.start == new.stop - new.start == 1
        if alone and old.start == place:
            return int(new.start)
    raise _Mixed


def _transposed(op: Op, places: list[int | None]) -> int:
    perm = [normal_axis(a, len(op.defn.attributes()["perm"])) for a in op.defn.attributes()["perm"]]
    if places[0] is None:
        raise _Mixed
    return perm.index(places[0])


def _along(op: Op, places: list[int | None]) -> int:
    """Ops along one axis, which must be another one; all operands have one rank."""
    known = {place for place in places if place is not None}
    axis = op.defn.attributes().get("axis", -1)
    placed = zip(op.operands, places, strict=True)
    x = present(next(v for v, place in placed if place is not None))
    if len(known) != 1 or normal_axis(axis, x.type.rank) in known:
        raise _Mixed
    (place,) = known
    if op.name == "argmax" and not op.defn.attributes()["keepdims"]:
        return place - (normal_axis(axis, x.type.rank) < place)
    return place


def _normed(op: Op, places: list[int | None]) -> int:
    if (
        places[0] is None
        or places[0] == op.results[0].type.rank - 1
        or any(p is not None for p in places[1:])
    ):
        raise _Mixed
    return places[0]


def _reduced(op: Op, places: list[int | None]) -> int:
    (x,), has, place = op.values, op.defn.attributes(), places[0]
    axes = normal_axes(has["axes"], x.type.rank)
    if place is None or place in axes:
        raise _Mixed
    return place if has["keepdims"] else place - sum(axis < place for axis in axes)


def _multiplied(op: Op, places: list[int | None]) -> int:
    x, y = op.values
    rank = op.results[0].type.rank
    first, second = places
    found = set()
    if first is not None:
        if first == x.type.rank - 1:
            raise _Mixed
        found.add(first + rank - x.type.rank)
    if second is not None:
        if second == y.type.rank - 2:
            raise _Mixed
        found.add(second + rank - y.type.rank)
    if len(found) != 1:
        raise _Mixed
    (place,) = found
    if place >= rank - 2 and first is not None and second is not None:
        raise _Mixed
    if op.results[0].type.shape[place] == 1:
        raise _Mixed
    return place


_FOLLOW: Mapping[str, Callable[[Op, list[int | None]], int]] = {
    "argmax": _along,
    "concat": _along,
    "cumsum": _along,
    "gather_elements": _along,
    "layer_norm": _normed,
    "linear": _normed,
    "matmul": _multiplied,
    "pad": _along,
    "reduce": _reduced,
    "rms_norm": _normed,
    "slice": _along,
    "softmax": _along,
    "transpose": _transposed,
}
