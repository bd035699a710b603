"""Tensor types and source locations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from seqmix_ir.dims import Size, show_size
from seqmix_ir.errors import IRError, did_you_mean

__all__ = [
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "MOST_AXES",
    "DType",
    "Loc",
    "TensorType",
    "check_dtype",
    "item_bytes",
]

DType: TypeAlias = Literal["f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool"]
DTYPES: tuple[DType, ...] = get_args(DType)
FLOATS: frozenset[str] = frozenset({"f64", "f32", "f16", "bf16"})
INTEGERS: frozenset[str] = frozenset({"i64", "i32", "i8", "u8"})
MOST_AXES = 64
"""Of a tensor that is read from a file: numpy and torch know no more."""
_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; the shape may name sizes that are known only at run time."""

    dtype: DType
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def with_shape(self, shape: tuple[Size, ...]) -> TensorType:
        """The same element type with another shape."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another element type."""
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(show_size, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Loc:
    """Where an op came from; ``parent`` is the op that a decomposition replaced."""

    text: str
    parent: Loc | None = None

    def inside(self, step: str) -> Loc:
        """The location of an op made by ``step`` out of the op that stood here."""
        return Loc(step, self)

    def __str__(self) -> str:
        steps, parent = [self.text], self.parent
        while parent is not None:
            steps.append(parent.text)
            parent = parent.parent
        return ", from ".join(steps)


def check_dtype(name: str) -> DType:
    """``name`` as a dtype; IRError with near names when there is none."""
    for dtype in DTYPES:
        if dtype == name:
            return dtype
    raise IRError(f"unknown dtype {name!r}{did_you_mean(name, DTYPES)}; known: {', '.join(DTYPES)}")


def item_bytes(dtype: DType) -> int:
    """Bytes of one element."""
    return _BYTES[dtype]
