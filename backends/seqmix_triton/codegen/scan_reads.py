"""How the body of a scan reads its carries, followed without writing anything.

A carry lies in registers: a program can read its own element of it, or a whole axis, but no shifted
one. What is shifted by a cut axis (a pad, a concatenation, a merged axis) is found here too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axes
from seqmix_ir.passes.group_index import (
    At,
    Axis,
    Condition,
    Index,
    Looked,
    Quotient,
    Rest,
    always,
    atoms_of,
    axes_of,
    never,
    of_axis,
)
from seqmix_ir.passes.group_pull import broadcast_at, follow, is_layout, is_pointwise, parts_of

__all__ = [
    "PRODUCTS",
    "NotALoopError",
    "Reads",
    "inner_axis",
    "known_size",
    "pieces",
    "product_at",
    "reduced_axes",
    "reduction_at",
]

PRODUCTS = frozenset({"matmul", "linear"})


class NotALoopError(Exception):
    """Why a body is no kernel; the loop in torch stays."""


def inner_axis(at: At, size: Size, taken: Iterable[Axis] = ()) -> Axis:
    """An axis for a sum at this place: equal for equal sizes, other than those around."""
    if not isinstance(size, int):
        raise NotALoopError(
            f"a sum runs over {size} elements, which no kernel knows when it is compiled"
        )
    around = {*axes_of(at), *taken}
    depth = 0
    while Axis(f"k{depth}", size) in around:
        depth += 1
    return Axis(f"k{depth}", size)


def product_at(op: Op, at: At, along: Index) -> tuple[tuple[Value, At], tuple[Value, At]]:
    """What a product reads for one element of its result, for a place along the sum."""
    x, y = op.operands[0], op.operands[1]
    if x is None or y is None:
        raise NotALoopError(f"'{op.name}' lacks an operand")
    if op.name == "linear":
        return (x, (*at[:-1], along)), (y, (at[-1], along))
    lead = at[:-2]
    left = (*lead[len(lead) - (x.type.rank - 2) :], at[-2], along)
    right = (*lead[len(lead) - (y.type.rank - 2) :], along, at[-1])
    return (x, broadcast_lead(left, x)), (y, broadcast_lead(right, y))


def broadcast_lead(at: At, value: Value) -> At:
    """The place with 0 where an axis in front of a matrix has one element."""
    return (*broadcast_at(at, value)[:-2], *at[-2:])


def reduction_at(op: Op, at: At, along: Mapping[int, Index]) -> tuple[Value, At]:
    """The operand of a reduction and its place, with indices for the axes that are reduced."""
    (x,) = op.values
    kept = iter(at)
    place = []
    for axis in range(x.type.rank):
        if axis not in along:
            place.append(next(kept))
            continue
        if op.defn.attributes()["keepdims"]:
            next(kept)
        place.append(along[axis])
    return x, tuple(place)


def known_size(axis: Axis) -> int:
    """The size of an axis within a program; NotALoopError where it is a name."""
    if not isinstance(axis.size, int):
        raise NotALoopError(f"an axis has {axis.size} places, which no kernel knows beforehand")
    return axis.size


@dataclass
class Reads:
    """What some values read, at which places; products with the places of their operands."""

    makers: Mapping[Value, Op]
    carries: Mapping[Value, int]
    of_carries: list[tuple[Value, At]] = field(default_factory=list)
    conditions: set[Condition] = field(default_factory=set)
    divided: set[tuple[Index, Size]] = field(default_factory=set)
    products: list[tuple[Op, At, At]] = field(default_factory=list)
    moved: bool = False
    _seen: set[tuple[Value, At]] = field(default_factory=set)

    def visit(self, value: Value, at: At) -> None:
        """Follow a value back to what lies in memory or registers."""
        follow(value, at, self._of, self._seen)

    def shifted(self) -> bool:
        """Whether a carry is read at a place that registers do not give, or a product's result.

        A shifted product could be computed, but a second time.
        """
        return self.moved or self.carries_shifted()

    def carries_shifted(self) -> bool:
        """Whether a carry is read at a place that registers do not give."""
        return any(not _whole(value, at) for value, at in self.of_carries)

    def cuts(self, axis: Axis) -> list[int]:
        """Where an axis can be cut so that what is read on either side is not shifted."""
        size = known_size(axis)
        found = {0, size}
        for condition in self.conditions:
            shift = _shift(condition.index, axis)
            for edge in (condition.low, condition.high):
                if shift is not None and isinstance(edge, int):
                    found.add(edge - shift)
        for index, by in self.divided:
            shift = _shift(index, axis)
            if shift is not None and isinstance(by, int):
                found |= set(range(-shift % by, size, by))
        return sorted(place for place in found if 0 <= place <= size)

    def _of(self, value: Value, at: At) -> list[tuple[Value, At]]:
        looked = []
        for atom in (atom for index in at for atom in atoms_of(index)):
            if isinstance(atom, Looked):
                looked.append((atom.value, atom.at))
            elif isinstance(atom, Quotient | Rest):
                self.divided.add((atom.index, atom.by))
        if value in self.carries:
            self.of_carries.append((value, at))
            return looked
        op = self.makers.get(value)
        return looked if op is None else looked + self._of_op(op, at)

    def _of_op(self, op: Op, at: At) -> list[tuple[Value, At]]:
        if is_layout(op):
            return self._layout(op, at) if op.operands else []
        if is_pointwise(op):
            return [(v, broadcast_at(at, v)) for v in op.operands if v is not None]
        if op.name in PRODUCTS:
            return self._product(op, at)
        if op.name == "reduce":
            return self._reduction(op, at)
        raise NotALoopError(f"a loop's kernel has no '{op.name}'")

    def _layout(self, op: Op, at: At) -> list[tuple[Value, At]]:
        found = []
        for part in parts_of(op, at):
            self.conditions.update(part.conditions)
            if any(map(never, part.conditions)):
                continue
            if part.value is not None:
                found.append((part.value, part.at))
            if all(map(always, part.conditions)):
                break
        return found

    def _product(self, op: Op, at: At) -> list[tuple[Value, At]]:
        x = op.operands[0]
        whole = inner_axis(at, 1 if x is None else x.type.shape[-1])
        left, right = product_at(op, at, of_axis(whole))
        self.products.append((op, left[1], right[1]))
        shape = op.results[0].type.shape
        self.moved |= any(
            index.terms and ((axis := index.axis()) is None or axis.size != size)
            for index, size in zip(at, shape, strict=True)
        )
        bias = op.operands[2] if op.name == "linear" else None
        found = [] if bias is None else [(bias, at[-1:])]
        for along in pieces(self.makers, self.carries, whole, at, [left, right]):
            found += product_at(op, at, along)
        return found

    def _reduction(self, op: Op, at: At) -> list[tuple[Value, At]]:
        along = reduced_axes(op, at)
        whole = reduction_at(op, at, along)
        axes = [(n, a) for n, index in along.items() if (a := index.axis()) is not None]
        if len(axes) != 1:
            return [whole]
        ((number, axis),) = axes
        parts = pieces(self.makers, self.carries, axis, at, [whole])
        return [reduction_at(op, at, {**along, number: part}) for part in parts]


def pieces(
    makers: Mapping[Value, Op],
    carries: Mapping[Value, int],
    axis: Axis,
    around: At,
    wanted: Iterable[tuple[Value, At]],
) -> list[Index]:
    """The axis of a sum at a place, cut where what is read would be shifted otherwise."""
    if axis.size == 1:
        return [Index()]
    reads = Reads(makers, carries)
    for value, at in wanted:
        reads.visit(value, at)
    if not reads.shifted():
        return [of_axis(axis)]
    cuts = reads.cuts(axis)
    return [
        of_axis(inner_axis(around, stop - start)).plus(start)
        for start, stop in itertools.pairwise(cuts)
    ]


def reduced_axes(op: Op, at: At) -> dict[int, Index]:
    """An index for every axis that is reduced."""
    (x,) = op.values
    defn: Any = op.defn
    found: dict[int, Index] = {}
    taken: list[Axis] = []
    for axis in normal_axes(defn.axes, x.type.rank):
        inner = inner_axis(at, x.type.shape[axis], taken)
        taken.append(inner)
        found[axis] = of_axis(inner)
    return found


def _whole(value: Value, at: At) -> bool:
    """Whether a carry is read along axes of its own sizes."""
    axes = [index.axis() for index, size in zip(at, value.type.shape, strict=True) if size != 1]
    sizes = [size for size in value.type.shape if size != 1]
    fits = all(a is not None and a.size == n for a, n in zip(axes, sizes, strict=True))
    return fits and len(set(axes)) == len(axes)


def _shift(index: Index, axis: Axis) -> int | None:
    """What an index adds to an axis, if that is all that it is."""
    if index.terms == ((axis, 1),) and isinstance(index.constant, int):
        return index.constant
    return None
