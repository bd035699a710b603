"""Attribute values and locations as text."""

from __future__ import annotations

import json
import math

from seqmix_ir.dims import Dim, show_size
from seqmix_ir.errors import IRError
from seqmix_ir.types import Loc, TensorType

__all__ = ["show_literal", "show_loc"]


def show_literal(value: object) -> str:
    """An attribute value as text; IRError when no attribute may hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Dim):
        return show_size(value)
    if isinstance(value, int | TensorType):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(show_literal, value)) + "]"
    raise IRError(
        f"an attribute holds {value!r} ({type(value).__name__}); attributes are bools, numbers, "
        "strings, sizes, tensor types and tuples of them"
    )


def show_loc(loc: Loc) -> str:
    """A chain of locations, innermost first."""
    steps: list[str] = []
    current: Loc | None = loc
    while current is not None:
        steps.append(json.dumps(current.text))
        current = current.parent
    return f"loc({' from '.join(steps)})"
