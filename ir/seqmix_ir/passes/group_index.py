"""Where the elements of a result come from: indices as sums, carried back through layout ops.

An :class:`Index` is canonical, ``constant + sum of coefficient * atom``, so that equal places are
equal objects. Atoms are axes that run from 0 to their size, quotients and remainders that no
simplification removed, and indices that are read from a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from seqmix_ir.dims import Dim, Size, floordiv
from seqmix_ir.graph import Value

__all__ = [
    "At",
    "Atom",
    "Axis",
    "Condition",
    "Index",
    "Looked",
    "Quotient",
    "Rest",
    "always",
    "atoms_of",
    "axes_of",
    "fixed",
    "flat",
    "never",
    "of_axis",
    "regrouped",
]


@dataclass(frozen=True, slots=True)
class Axis:
    """What runs from 0 to ``size``."""

    name: str
    size: Size


@dataclass(frozen=True, slots=True)
class Quotient:
    """An index divided by a size, rounded down."""

    index: Index
    by: Size


@dataclass(frozen=True, slots=True)
class Rest:
    """The remainder of that division."""

    index: Index
    by: Size


@dataclass(frozen=True, slots=True)
class Looked:
    """An index that is an element of a tensor; below 0 it counts from the end of ``size``."""

    value: Value
    at: tuple[Index, ...]
    size: Size


Atom: TypeAlias = "Axis | Quotient | Rest | Looked"


@dataclass(frozen=True, slots=True)
class Index:
    """``constant + sum of coefficient * atom``."""

    terms: tuple[tuple[Atom, Size], ...] = ()
    constant: Size = 0

    def plus(self, other: Index | Size) -> Index:
        """The sum; terms of one atom are joined."""
        if isinstance(other, int | Dim):
            return Index(self.terms, self.constant + other)
        joined: dict[Atom, Size] = dict(self.terms)
        for atom, by in other.terms:
            joined[atom] = joined.get(atom, 0) + by
        kept = tuple((atom, by) for atom, by in joined.items() if by != 0)
        return Index(kept, self.constant + other.constant)

    def times(self, by: Size) -> Index:
        """The product with a size."""
        if by == 0:
            return Index()
        return Index(tuple((atom, own * by) for atom, own in self.terms), self.constant * by)

    def divided(self, by: Size) -> Index:
        """The quotient, rounded down."""
        if by == 1:
            return self
        whole, rest = self._split(by)
        if rest.within(by):
            return whole
        match rest:
            case Index(((Quotient(inner, first), 1),), 0):
                return whole.plus(Index(((Quotient(inner, first * by), 1),)))
        return whole.plus(Index(((Quotient(rest, by), 1),)))

    def remainder(self, by: Size) -> Index:
        """What the division leaves."""
        if by == 1:
            return Index()
        rest = self._split(by)[1]
        return rest if rest.within(by) else Index(((Rest(rest, by), 1),))

    def within(self, size: Size) -> bool:
        """Whether it surely is one of ``0 .. size - 1``."""
        top = self.highest()
        return self.not_negative() and top is not None and _not_negative(size - 1 - top)

    def not_negative(self) -> bool:
        """Whether it surely is 0 or more; sizes are."""
        return _not_negative(self.constant) and all(_not_negative(by) for _, by in self.terms)

    def highest(self) -> Size | None:
        """The largest value it can take, where that is known."""
        total = self.constant
        for atom, by in self.terms:
            top = _highest(atom)
            if top is None or not _not_negative(by):
                return None
            total = total + top * by
        return total

    def axis(self) -> Axis | None:
        """The axis that it is and nothing else, or None."""
        match self:
            case Index(((Axis() as axis, 1),), 0):
                return axis
        return None

    def _split(self, by: Size) -> tuple[Index, Index]:
        """``self = whole * by + rest``."""
        whole: list[tuple[Atom, Size]] = []
        rest: list[tuple[Atom, Size]] = []
        for atom, own in self.terms:
            exact = _exact(own, by)
            (rest if exact is None else whole).append((atom, own if exact is None else exact))
        exact = _exact(self.constant, by)
        if exact is not None:
            return Index(tuple(whole), exact), Index(tuple(rest))
        if isinstance(self.constant, int) and isinstance(by, int):
            times, left = divmod(self.constant, by)
            return Index(tuple(whole), times), Index(tuple(rest), left)
        return Index(tuple(whole)), Index(tuple(rest), self.constant)


At: TypeAlias = "tuple[Index, ...]"


@dataclass(frozen=True, slots=True)
class Condition:
    """``low <= index < high``."""

    index: Index
    low: Size
    high: Size


def of_axis(axis: Axis) -> Index:
    """The index that is an axis; 0 where the axis has one place."""
    return Index() if axis.size == 1 else Index(((axis, 1),))


def fixed(place: Size) -> Index:
    """The same place everywhere."""
    return Index((), place)


def always(condition: Condition) -> bool:
    """Whether it surely holds."""
    return condition.index.plus(condition.low * -1).within(condition.high - condition.low)


def never(condition: Condition) -> bool:
    """Whether it surely does not hold."""
    index, top = condition.index, condition.index.highest()
    below = top is not None and _not_negative(condition.low - 1 - top)
    return below or index.plus(condition.high * -1).not_negative()


def flat(at: At, shape: tuple[Size, ...]) -> Index:
    """The place in row-major order."""
    place = Index()
    for index, size in zip(at, shape, strict=True):
        place = place.times(size).plus(index)
    return place


def regrouped(at: At, shape: tuple[Size, ...], into: tuple[Size, ...]) -> At:
    """The place under another shape of as many elements."""
    first = [(i, n) for i, n in zip(at, shape, strict=True) if n != 1]
    wanted = [(axis, n) for axis, n in enumerate(into) if n != 1]
    found = [Index()] * len(into)
    i = j = 0
    for until, to in _meetings([n for _, n in first], [n for _, n in wanted]):
        part = first[i:until]
        place = flat(tuple(index for index, _ in part), tuple(n for _, n in part))
        for axis, size in reversed(wanted[j + 1 : to]):
            found[axis] = place.remainder(size)
            place = place.divided(size)
        if j < to:
            found[wanted[j][0]] = place
        i, j = until, to
    return tuple(found)


def atoms_of(index: Index) -> Iterator[Atom]:
    """Every atom, those inside others too."""
    for atom, _ in index.terms:
        yield atom
        if isinstance(atom, Quotient | Rest):
            yield from atoms_of(atom.index)
        elif isinstance(atom, Looked):
            for inner in atom.at:
                yield from atoms_of(inner)


def axes_of(at: At) -> set[Axis]:
    """The axes that a place depends on."""
    return {atom for index in at for atom in atoms_of(index) if isinstance(atom, Axis)}


def _meetings(shape: list[Size], into: list[Size]) -> Iterator[tuple[int, int]]:
    """Where as many elements lie in front of an axis of either shape."""
    places = {math.prod(into[:j], start=1): j for j in range(1, len(into) + 1)}
    before: Any = 1
    last = 0
    for i, size in enumerate(shape, start=1):
        before = before * size
        found = places.get(before)
        if found is not None and found > last:
            last = found
            yield i, found
    if (not shape and into) or (shape and last < len(into)):
        yield len(shape), len(into)


def _exact(size: Size, by: Size) -> Size | None:
    """``size / by`` where that is a size without rounding."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by if by and size % by == 0 else None
    if size == 0:
        return 0
    if isinstance(by, int):
        quotient = floordiv(size, by) if by > 0 else None
        return quotient if quotient is not None and quotient * by == size else None
    return _exact_symbolic(size, by) if isinstance(size, Dim) else None


def _exact_symbolic(size: Dim, by: Dim) -> Size | None:
    """A monomial taken out of every term."""
    if size == by:
        return 1
    if len(by.terms) != 1:
        return None
    monomial, number = by.terms[0]
    total: Size = 0
    for own, coefficient in size.terms:
        left = list(own)
        for name in monomial:
            if name not in left:
                return None
            left.remove(name)
        if coefficient % number:
            return None
        product: Size = coefficient // number
        for name in left:
            product = product * Dim((((name,), 1),))
        total = total + product
    return total


def _not_negative(size: Size) -> bool:
    """Whether a size, or a difference of sizes, surely is 0 or more: names stand for such."""
    if isinstance(size, int):
        return size >= 0
    return all(coefficient >= 0 for _, coefficient in size.terms)


def _highest(atom: Atom) -> Size | None:
    if isinstance(atom, Axis | Looked):
        return atom.size - 1
    if isinstance(atom, Rest):
        return atom.by - 1
    top = atom.index.highest()
    if isinstance(top, int) and isinstance(atom.by, int):
        return top // atom.by
    return None
