"""Symbolic sizes: integer polynomials over named dimensions and opaque atoms, always canonical.

A ``Size`` is a plain ``int`` or a :class:`Dim`; arithmetic collapses to ``int`` when nothing
symbolic is left, so equality of sizes is structural equality.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from seqmix_ir.errors import IRError

__all__ = [
    "Atom",
    "Dim",
    "Opaque",
    "Size",
    "ceildiv",
    "dim",
    "evaluate_size",
    "floordiv",
    "isqrt",
    "maximum_size",
    "minimum_size",
    "show_size",
    "substitute_size",
    "symbols_of",
]

Size: TypeAlias = "int | Dim"
Atom: TypeAlias = "str | Opaque"
OpaqueKind: TypeAlias = Literal["ceildiv", "floordiv", "isqrt", "min", "max"]
Division: TypeAlias = Literal["ceildiv", "floordiv"]
Monomial: TypeAlias = tuple[Atom, ...]

_LITERALS = ("true", "false", "inf", "nan")

_TERMS = 1024
_FACTORS = 256
"""Of a size, and names in a term of it: sizes of models have about ten, and products of polynomials
grow without end."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """No polynomial: ``ceildiv(a, b)``, ``floordiv(a, b)``, ``isqrt(a)``, ``min``, ``max``."""

    kind: OpaqueKind
    args: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(show_size, self.args))})"


@dataclass(frozen=True, slots=True)
class Dim:
    """A size not known until run time, such as ``P + S`` or ``2*ceildiv(S, 64)``."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Size) -> Size:
        return _collect(_terms(self), _terms(other))

    def __mul__(self, other: Size) -> Size:
        product: Counter[Monomial] = Counter()
        factors = _terms(other)
        if len(self.terms) * len(factors) > 4 * _TERMS:
            raise _too_large()
        for left, a in self.terms:
            for right, b in factors.items():
                product[_sorted(left + right)] += a * b
        return _collect(product)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __neg__(self) -> Size:
        return self * -1

    def __str__(self) -> str:
        return show_size(self)


def dim(name: str) -> Dim:
    """The size called ``name``; IRError for names that the text form could not read back."""
    if not (name.isascii() and name.isidentifier()):
        raise IRError(f"dimension name {name!r} is not an identifier; use letters, digits and '_'")
    if name in _LITERALS:
        raise IRError(f"dimension name {name!r} is a literal in the text form; choose another")
    return Dim((((name,), 1),))


def floordiv(size: Size, by: Size) -> Size:
    """``size // by`` rounded down: exact where it divides, else an opaque atom."""
    return _divide("floordiv", size, by)


def ceildiv(size: Size, by: Size) -> Size:
    """``size // by`` rounded up: exact where it divides, else an opaque atom."""
    return _divide("ceildiv", size, by)


def isqrt(size: Size) -> Size:
    """The square root of ``size`` rounded down; IRError for a number below 0."""
    if isinstance(size, Dim):
        return _atom(Opaque("isqrt", (size,)))
    if size < 0:
        raise IRError(f"isqrt({size}): there is no root of a number below 0")
    return math.isqrt(size)


def minimum_size(*sizes: Size) -> Size:
    """The smallest of the sizes."""
    return _extremum("min", sizes)


def maximum_size(*sizes: Size) -> Size:
    """The largest of the sizes."""
    return _extremum("max", sizes)


def symbols_of(size: Size) -> set[str]:
    """Every dimension name in ``size``."""
    return {name for atom in _atoms(size) for name in _names(atom)}


def evaluate_size(size: Size, binding: Mapping[str, int]) -> int:
    """Replace every name by its bound value; IRError when one is not bound."""
    result = substitute_size(size, binding)
    if isinstance(result, int):
        return result
    missing = sorted(symbols_of(result))
    raise IRError(f"size {size} needs {', '.join(missing)}, which no argument binds")


def substitute_size(size: Size, binding: Mapping[str, Size]) -> Size:
    """Replace names by sizes; names that are not in ``binding`` stay."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, coefficient in size.terms:
        product: Size = coefficient
        for atom in monomial:
            product = product * _substitute_atom(atom, binding)
        total = total + product
    return total


def show_size(size: Size) -> str:
    """Text such as ``2*B*S + P - 1``; the parser reads it back."""
    if isinstance(size, int):
        return str(size)
    text = ""
    for monomial, coefficient in size.terms:
        sign = "-" if coefficient < 0 else "+"
        factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []
        term = "*".join(factors + [str(atom) for atom in monomial])
        text += f" {sign} {term}" if text else (f"-{term}" if sign == "-" else term)
    return text


def _terms(size: Size) -> Counter[Monomial]:
    return Counter(dict(size.terms)) if isinstance(size, Dim) else Counter({(): size})


def _sorted(monomial: Monomial) -> Monomial:
    if len(monomial) > _FACTORS:
        raise _too_large()
    return tuple(sorted(monomial, key=str))


def _collect(*parts: Counter[Monomial]) -> Size:
    total: Counter[Monomial] = Counter()
    for part in parts:
        for monomial, coefficient in part.items():
            total[monomial] += coefficient
    kept = {m: c for m, c in total.items() if c}
    if set(kept) <= {()}:
        return kept.get((), 0)
    if len(kept) > _TERMS:
        raise _too_large()
    return Dim(tuple(sorted(kept.items(), key=_order)))


def _too_large() -> IRError:
    return IRError(
        f"a size has more than {_TERMS} terms or {_FACTORS} factors, which is too large to be "
        "meant; give a part of it a name of its own"
    )


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return (-len(term[0]), [str(atom) for atom in term[0]])


def _atom(atom: Atom) -> Dim:
    return Dim((((atom,), 1),))


def _divide(kind: Division, size: Size, by: Size) -> Size:
    if isinstance(by, int):
        if by <= 0:
            raise IRError(f"{kind}({size}, {by}): the divisor must be positive")
        if isinstance(size, int):
            return _rounded(kind, size, by)
        return _divide_by_number(kind, size, by)
    if size == by:
        return 1
    return 0 if size == 0 else _atom(Opaque(kind, (size, by)))


def _divide_by_number(kind: Division, size: Dim, by: int) -> Size:
    """The canonical quotient: what divides is taken out, and the rest is made small."""
    if by == 1:
        return size
    whole, rest = _split(kind, size, by)
    if isinstance(rest, Dim) and (factor := math.gcd(by, *_coefficients(rest))) > 1:
        # x / (g*n) is (x / g) / n with the same rounding twice; only the number is rounded.
        parts = {m: _rounded(kind, c, factor) for m, c in rest.terms}
        rest, by = _collect(Counter(parts)), by // factor
    if isinstance(rest, int):
        return whole + _rounded(kind, rest, by)
    if rest.terms[0][1] < 0:
        other: Division = "ceildiv" if kind == "floordiv" else "floordiv"
        return whole - _quotient(other, rest * -1, by)
    return whole + _quotient(kind, rest, by)


def _split(kind: Division, size: Dim, by: int) -> tuple[Size, Size]:
    """``size = by * whole + rest``; the number in ``rest`` is rounded away by the division."""
    parts = {m: _whole(kind, m, c, by) for m, c in size.terms}
    whole = _collect(Counter(parts))
    return whole, size - whole * by


def _whole(kind: Division, monomial: Monomial, coefficient: int, by: int) -> int:
    """How often ``by`` is in a coefficient: towards zero, but a number as the division rounds."""
    if not monomial:
        return _rounded(kind, coefficient, by)
    times = abs(coefficient) // by
    return times if coefficient > 0 else -times


def _quotient(kind: Division, size: Size, by: int) -> Size:
    """The atom for a rest that nothing can be taken out of; a quotient in it joins."""
    sign, inner, number = _opaque(size)
    if sign == 1 and inner is not None and inner.kind == kind:
        below, again = inner.args
        if isinstance(again, int):
            return _divide(kind, below + number * again, by * again)
    return _atom(Opaque(kind, (size, by)))


def _opaque(size: Size) -> tuple[int, Opaque | None, int]:
    """``(sign, atom, number)`` of ``number + atom`` or ``number - atom``, else no atom."""
    terms = _terms(size)
    number = terms.pop((), 0)
    if len(terms) != 1:
        return 0, None, 0
    ((atom, *more), sign) = next(iter(terms.items()))
    if more or abs(sign) != 1 or not isinstance(atom, Opaque):
        return 0, None, 0
    return sign, atom, number


def _rounded(kind: Division, number: int, by: int) -> int:
    return number // by if kind == "floordiv" else -(-number // by)


def _coefficients(size: Dim) -> Iterator[int]:
    """Those of the terms with a name."""
    return (c for m, c in size.terms if m)


def _extremum(kind: Literal["min", "max"], sizes: tuple[Size, ...]) -> Size:
    pick = min if kind == "min" else max
    flat: list[Size] = []
    for size in sizes:
        flat.extend(_same_kind(kind, size))
    numbers = [s for s in flat if isinstance(s, int)]
    symbolic = sorted({s for s in flat if isinstance(s, Dim)}, key=show_size)
    symbolic = _drop_offsets(pick, symbolic)
    merged: list[Size] = [*symbolic, *([pick(numbers)] if numbers else [])]
    if len(merged) == 1:
        return merged[0]
    if not merged:
        raise IRError(f"{kind}() needs at least one size")
    return _atom(Opaque(kind, tuple(merged)))


def _same_kind(kind: OpaqueKind, size: Size) -> Iterator[Size]:
    """The arguments of a ``min`` in a ``min``, also of ``min(..) + 1`` and ``1 - max(..)``."""
    sign, atom, number = _opaque(size)
    wanted = kind if sign == 1 else "max" if kind == "min" else "min"
    if atom is None or atom.kind != wanted:
        yield size
        return
    for arg in atom.args:
        yield from _same_kind(kind, arg * sign + number)


def _drop_offsets(pick: object, sizes: list[Dim]) -> list[Dim]:
    """Of sizes that differ by a number only (``S`` and ``S + 1``), keep the one that wins."""
    kept: dict[frozenset[tuple[Monomial, int]], Dim] = {}
    for size in sizes:
        named = frozenset(term for term in size.terms if term[0])
        other = kept.setdefault(named, size)
        gap = _terms(size)[()] - _terms(other)[()]
        if gap and (gap < 0) == (pick is min):
            kept[named] = size
    return list(kept.values())


def _atoms(size: Size) -> Iterator[Atom]:
    if isinstance(size, Dim):
        for monomial, _ in size.terms:
            yield from monomial


def _names(atom: Atom) -> Iterator[str]:
    if isinstance(atom, str):
        yield atom
        return
    for arg in atom.args:
        yield from symbols_of(arg)


def _substitute_atom(atom: Atom, binding: Mapping[str, Size]) -> Size:
    if isinstance(atom, str):
        return binding.get(atom, _atom(atom))
    args = tuple(substitute_size(a, binding) for a in atom.args)
    if atom.kind in ("min", "max"):
        return _extremum(atom.kind, args)
    if atom.kind == "isqrt":
        return isqrt(args[0])
    return _divide(cast("Division", atom.kind), args[0], args[1])
