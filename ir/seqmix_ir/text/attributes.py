"""Attribute values against the types that the fields of an op declare."""

from __future__ import annotations

from seqmix_ir.dims import Dim
from seqmix_ir.errors import IRError
from seqmix_ir.text.literal import show_literal
from seqmix_ir.types import MOST_AXES, TensorType

__all__ = ["fit_attribute"]

_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "Size": (int, Dim),
    "TensorType": (TensorType,),
}


def fit_attribute(key: str, value: object, declared: object) -> object:
    """``value`` as a field of the ``declared`` type takes it; IRError when it does not fit.

    Whole numbers may stand for floats. Annotations other than ``bool``, ``int``, ``float``,
    ``str``, ``Size``, ``TensorType`` and tuples of one of these are the op's own business.
    """
    name = declared.__name__ if isinstance(declared, type) else str(declared)
    if name.startswith("tuple[") and name.endswith(", ...]"):
        if not isinstance(value, tuple):
            raise _misfit(key, value, name)
        item = name.removeprefix("tuple[").removesuffix(", ...]")
        if item in ("Size", "int") and len(value) > MOST_AXES:
            raise IRError(
                f"attribute '{key}' is about {len(value)} axes, expected at most {MOST_AXES}"
            )
        return tuple(fit_attribute(key, v, item) for v in value)
    if (wanted := _TYPES.get(name)) is None:
        return value
    if name == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and name != "bool"):
        raise _misfit(key, value, name)
    return value


def _misfit(key: str, value: object, wanted: str) -> IRError:
    return IRError(f"attribute '{key}' is {show_literal(value)}, expected {wanted}")
