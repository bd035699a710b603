"""What the bounds in a graph's header say of sizes: their range, and shorter ways to write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from seqmix_ir.dims import (
    Atom,
    Opaque,
    Size,
    ceildiv,
    dim,
    floordiv,
    isqrt,
    maximum_size,
    minimum_size,
    substitute_size,
)
from seqmix_ir.graph import DimInfo

__all__ = ["Bounds", "Range"]

Range: TypeAlias = "tuple[int | float, int | float]"
"""Inclusive ends; a float is an infinity."""

_ANY: Range = (-math.inf, math.inf)
_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "ceildiv": ceildiv,
    "floordiv": floordiv,
    "isqrt": isqrt,
}


class Bounds:
    """The ranges of named sizes. A name that the header lacks is a size: 0 or more."""

    def __init__(self, dims: Iterable[DimInfo]) -> None:
        """Take the ends inwards to the multiples that the header asks for."""
        ends = {info.name: _ends(info) for info in dims}
        # Counted from its low end a name is 0 or more; so B*S - S is seen to be, where B >= 1.
        self._above = {name: high - low for name, (low, high) in ends.items()}
        self._lifted = {name: dim(name) + low for name, (low, _) in ends.items()}
        self._known: dict[Atom, Size] = {}

    def range(self, size: Size) -> Range:
        """Ends that ``size`` surely lies between; terms count as if independent of each other."""
        return self._range(substitute_size(size, self._lifted))

    def _range(self, size: Size) -> Range:
        if isinstance(size, int):
            return (size, size)
        low: int | float = 0
        high: int | float = 0
        for monomial, coefficient in size.terms:
            term: Range = (coefficient, coefficient)
            for atom in monomial:
                term = _product(term, self._atom(atom))
            low, high = low + term[0], high + term[1]
        return (low, high)

    def at_least(self, size: Size, other: Size) -> bool:
        """Whether ``size >= other`` surely holds."""
        return self.range(size - other)[0] >= 0

    def shorten(self, size: Size) -> Size:
        """The same size without arguments of ``min`` and ``max`` that never win.

        Quotients and roots that have one value only become it. It goes atom by atom, so the
        shorter form of a sum or product is that of its parts.
        """
        if isinstance(size, int):
            return size
        total: Size = 0
        for monomial, coefficient in size.terms:
            product: Size = coefficient
            for atom in monomial:
                product = product * self._short(atom)
            total = total + product
        return total

    def _short(self, atom: Atom) -> Size:
        if isinstance(atom, str):
            return dim(atom)
        if (known := self._known.get(atom)) is None:
            known = self._known[atom] = self._shorter(atom)
        return known

    def _shorter(self, atom: Opaque) -> Size:
        args = [self.shorten(arg) for arg in atom.args]
        if atom.kind == "min":
            return minimum_size(*self._extreme(args, lowest=True))
        if atom.kind == "max":
            return maximum_size(*self._extreme(args, lowest=False))
        size = _FUNCTIONS[atom.kind](*args)
        low, high = self.range(size)
        return low if low == high and isinstance(low, int) else size

    def _extreme(self, args: list[Size], lowest: bool) -> list[Size]:
        """The arguments without those that another one surely beats or equals."""
        kept: list[Size] = []
        for i, arg in enumerate(args):
            rivals = (*kept, *args[i + 1 :])
            beaten = (
                self.at_least(arg, rival) if lowest else self.at_least(rival, arg)
                for rival in rivals
            )
            if not any(beaten):
                kept.append(arg)
        return kept

    def _atom(self, atom: Atom) -> Range:
        if isinstance(atom, str):
            return (0, self._above.get(atom, math.inf))
        if atom.kind in ("floordiv", "ceildiv"):
            return self._quotient(atom)
        if atom.kind == "isqrt":
            low, high = self._range(atom.args[0])
            return (_root(low), _root(high))
        ranges = [self._range(arg) for arg in atom.args]
        pick = min if atom.kind == "min" else max
        return (pick(r[0] for r in ranges), pick(r[1] for r in ranges))

    def _quotient(self, atom: Opaque) -> Range:
        size, by = atom.args
        low, high = self._range(size)
        if not isinstance(by, int):
            # A divisor is 1 or more where the quotient exists at all.
            return (0, high) if low >= 0 else _ANY
        return (_divided(low, by, atom.kind), _divided(high, by, atom.kind))


def _ends(info: DimInfo) -> tuple[int, int | float]:
    step = max(info.multiple_of, 1)
    low = -(-max(info.min, 0) // step) * step
    return (low, math.inf if info.max is None else info.max // step * step)


def _product(a: Range, b: Range) -> Range:
    ends = [_times(x, y) for x in a for y in b]
    return (min(ends), max(ends))


def _times(x: int | float, y: int | float) -> int | float:
    """0 times infinity is 0: an end is what a size may be, never a limit that it reaches."""
    return 0 if x == 0 or y == 0 else x * y


def _root(end: int | float) -> int | float:
    """That of an end; what has a root at all is 0 or more."""
    return end if end == math.inf else math.isqrt(int(max(end, 0)))


def _divided(end: int | float, by: int, kind: str) -> int | float:
    if isinstance(end, float):
        return end
    return end // by if kind == "floordiv" else -(-end // by)
