"""Symbolic sizes: integer polynomials over named dimensions and opaque atoms, always canonical.

A ``Size`` is a plain ``int`` or a :class:`Dim`; arithmetic collapses to ``int`` when nothing
symbolic is left, so equality of sizes is structural equality.
"""

from __future__ import annotations

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
    "maximum_size",
    "minimum_size",
    "show_size",
    "substitute_size",
    "symbols_of",
]

Size: TypeAlias = "int | Dim"
Atom: TypeAlias = "str | Opaque"
OpaqueKind: TypeAlias = Literal["ceildiv", "floordiv", "min", "max"]
Monomial: TypeAlias = tuple[Atom, ...]

_LITERALS = ("true", "false", "inf", "nan")


@dataclass(frozen=True, slots=True)
class Opaque:
    """A size that is no polynomial: ``ceildiv(a, b)``, ``floordiv(a, b)``, ``min``, ``max``."""

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
        for left, a in self.terms:
            for right, b in _terms(other).items():
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
    return tuple(sorted(monomial, key=str))


def _collect(*parts: Counter[Monomial]) -> Size:
    total: Counter[Monomial] = Counter()
    for part in parts:
        for monomial, coefficient in part.items():
            total[monomial] += coefficient
    kept = {m: c for m, c in total.items() if c}
    if set(kept) <= {()}:
        return kept.get((), 0)
    return Dim(tuple(sorted(kept.items(), key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return (-len(term[0]), [str(atom) for atom in term[0]])


def _atom(atom: Atom) -> Dim:
    return Dim((((atom,), 1),))


def _divide(kind: Literal["ceildiv", "floordiv"], size: Size, by: Size) -> Size:
    if isinstance(by, int):
        if by <= 0:
            raise IRError(f"{kind}({size}, {by}): the divisor must be positive")
        if isinstance(size, int):
            return size // by if kind == "floordiv" else -(-size // by)
        if by == 1:
            return size
        whole, rest = _split(size, by)
        if isinstance(rest, int):
            return whole + _divide(kind, rest, by)
        return whole + _atom(Opaque(kind, (rest, by)))
    if size == by:
        return 1
    return 0 if size == 0 else _atom(Opaque(kind, (size, by)))


def _split(size: Dim, by: int) -> tuple[Size, Size]:
    """``size = by * whole + rest`` with the terms that divide taken out."""
    whole = _collect(Counter({m: c // by for m, c in size.terms if c % by == 0}))
    rest = _collect(Counter({m: c for m, c in size.terms if c % by != 0}))
    return whole, rest


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


def _same_kind(kind: str, size: Size) -> tuple[Size, ...]:
    """The arguments of a nested ``min`` in a ``min``, else the size itself."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        atom = monomial[0]
        if (
            coefficient == 1
            and len(monomial) == 1
            and isinstance(atom, Opaque)
            and atom.kind == kind
        ):
            return atom.args
    return (size,)


def _drop_offsets(pick: object, sizes: list[Dim]) -> list[Dim]:
    """Of sizes that differ by a number only (``S`` and ``S + 1``), keep the one that wins."""
    kept: list[Dim] = []
    for size in sizes:
        for i, other in enumerate(kept):
            gap = size - other
            if isinstance(gap, int):
                kept[i] = size if (gap < 0) == (pick is min) else other
                break
        else:
            kept.append(size)
    return kept


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
    return _divide(cast('Literal["ceildiv", "floordiv"]', atom.kind), args[0], args[1])
