"""Whether the tables of a rotation are cos and sin of positions times frequencies.

B batch, S sequence, R rotated size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from seqmix_ir.graph import Op, Value

__all__ = ["Tables", "find_tables"]

Makers: TypeAlias = "Mapping[Value, Op]"


@dataclass(frozen=True)
class Tables:
    """What tables are made of: int64 positions ``[B, S]``, and a spectrum.

    That is the frequencies ``[R/2]`` or ``[B, 1, R/2]``, and a factor on cos and sin, a number or
    ``[B, 1, 1]``; None for none.
    """

    positions: Value
    spectrum: tuple[Value, Value | None]


def find_tables(op: Op, made_by: Makers) -> Tables | None:
    """What the tables of a ``rotary`` op are made of; None for others than those.

    Angles must be float64, and the finished tables of the dtype in which the kernel turns.
    """
    x, cos, sin = op.values
    wide = "f64" if x.type.dtype == "f64" else "f32"
    parts = [_cast_from(table, made_by) for table in (cos, sin)]
    if cos.type.dtype != wide or any(part.type.dtype != "f64" for part in parts):
        return None
    (cosine, factor), (sine, other) = (_scaled(part, made_by) for part in parts)
    angles, same = _operand(cosine, "cos", made_by), _operand(sine, "sin", made_by)
    if angles is None or angles is not same or factor is not other:
        return None
    found = _positions_and_frequencies(angles, made_by)
    return None if found is None else Tables(found[0], (found[1], factor))


def _positions_and_frequencies(angles: Value, made_by: Makers) -> tuple[Value, Value] | None:
    """``max(positions, 0)`` as float64 ``[B, S, 1]`` times frequencies."""
    for places, frequencies in _factors(angles, made_by):
        column = _operand(places, "unsqueeze", made_by)
        whole = None if column is None else _operand(column, "cast", made_by)
        if whole is None or places.type.rank != 3 or places.type.shape[2] != 1:
            continue
        positions = _without_padding(whole, made_by)
        if positions is not None and _is_spectrum(frequencies, positions):
            return positions, frequencies
    return None


def _without_padding(value: Value, made_by: Makers) -> Value | None:
    """``positions`` of ``max(positions, 0)``."""
    made = made_by.get(value)
    if made is None or made.name != "maximum":
        return None
    one, other = made.values
    for positions, bound in ((one, other), (other, one)):
        zero = made_by.get(bound)
        if zero is not None and zero.name == "constant" and zero.defn.attributes()["value"] == 0:
            fits = positions.type.dtype == "i64" and positions.type.rank == 2
            return positions if fits else None
    return None


def _is_spectrum(frequencies: Value, positions: Value) -> bool:
    shape = frequencies.type.shape
    if frequencies.type.dtype != "f64" or len(shape) not in (1, 3):
        return False
    return len(shape) == 1 or (shape[1] == 1 and shape[0] in (1, positions.type.shape[0]))


def _scaled(value: Value, made_by: Makers) -> tuple[Value, Value | None]:
    """A function of angles, and the factor on it if there is one."""
    for part, factor in _factors(value, made_by):
        shape = factor.type.shape
        is_number = all(size == 1 for size in shape)
        if is_number or (len(shape) == 3 and all(size == 1 for size in shape[1:])):
            return part, factor
    return value, None


def _factors(value: Value, made_by: Makers) -> list[tuple[Value, Value]]:
    """The operands of a product, either way round; none where it is no product."""
    made = made_by.get(value)
    if made is None or made.name != "mul":
        return []
    one, other = made.values
    return [(one, other), (other, one)]


def _cast_from(value: Value, made_by: Makers) -> Value:
    return _operand(value, "cast", made_by) or value


def _operand(value: Value, name: str, made_by: Makers) -> Value | None:
    """The operand of the op called ``name`` that made the value."""
    made = made_by.get(value)
    return made.values[0] if made is not None and made.name == name else None
