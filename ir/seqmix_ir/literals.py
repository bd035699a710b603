"""Constant literals: scalars and nested tuples of scalars, checked against a dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix_ir.errors import IRError
from seqmix_ir.types import FLOATS, DType

__all__ = ["Literal", "check_literal", "literal_of", "literal_shape"]

Literal: TypeAlias = "bool | int | float | tuple[Literal, ...]"

_RANGES = {
    "i64": (-(2**63), 2**63 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i8": (-128, 127),
    "u8": (0, 255),
}


def literal_shape(value: Literal) -> tuple[int, ...]:
    """The shape that the nesting of ``value`` spells; IRError when it is ragged."""
    if not isinstance(value, tuple):
        return ()
    shapes = [literal_shape(item) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise IRError(
            f"constant is ragged: item 0 has shape {shapes[0]}, another has "
            f"{next(s for s in shapes if s != shapes[0])}; nest tuples of equal lengths"
        )
    return (len(value), *(shapes[0] if shapes else ()))


def check_literal(value: Literal, dtype: DType) -> None:
    """IRError unless every scalar of ``value`` is a Python value of ``dtype``."""
    for scalar in _scalars(value):
        if not _fits(scalar, dtype):
            raise IRError(
                f"constant {scalar!r} ({type(scalar).__name__}) is no value of {dtype}; "
                "use Python bools, ints in range, or floats (wrap arrays with literal_of)"
            )


def literal_of(array: NDArray[Any] | Literal, dtype: DType) -> Literal:
    """``array`` (numpy array, numpy scalar or Python value) as the literal of a constant."""
    if isinstance(array, np.generic | np.ndarray):
        return literal_of(_nested(_wide(array).tolist()), dtype)
    if isinstance(array, tuple):
        return tuple(literal_of(item, dtype) for item in array)
    return float(array) if dtype in FLOATS else array


def _wide(array: NDArray[Any] | np.generic) -> NDArray[Any]:
    """Plain numpy numbers; the ml_dtypes floats become float64."""
    kept = np.asarray(array)
    return kept if kept.dtype.kind in "biuf" else kept.astype(np.float64)


def _nested(value: Any) -> Literal:
    return tuple(map(_nested, value)) if isinstance(value, list | tuple) else value


def _scalars(value: Literal) -> Iterator[bool | int | float]:
    if not isinstance(value, tuple):
        yield value
        return
    for item in value:
        yield from _scalars(item)


def _fits(scalar: object, dtype: DType) -> bool:
    if dtype == "bool":
        return isinstance(scalar, bool)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float):
        return False
    if dtype in FLOATS:
        return True
    low, high = _RANGES[dtype]
    return isinstance(scalar, int) and low <= scalar <= high
