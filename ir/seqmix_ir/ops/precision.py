"""The precision in which an op accumulates: at least its ``accumulate``, never less than its input.

In evaluate, f16 and bf16 arrive as float32 and everything is float64 in the judge, so only the
numpy dtype must be found; in decompositions casts are written around the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqmix_ir.defn import Array, Run
from seqmix_ir.errors import IRError
from seqmix_ir.ops.cast import Cast
from seqmix_ir.types import FLOATS, DType, check_dtype, item_bytes

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Value

__all__ = ["accumulator", "check_accumulate", "narrow", "widen", "wider_dtype"]


def check_accumulate(accumulate: str) -> None:
    """IRError unless ``accumulate`` is f32 or f64."""
    if accumulate not in ("f32", "f64"):
        raise IRError(f"accumulate is {accumulate!r}, expected 'f32' or 'f64'")


def accumulator(run: Run, x: Array, accumulate: str = "f32") -> np.dtype[Any]:
    """The numpy dtype in which ``x`` is accumulated; integers stay what they are."""
    if x.dtype.kind != "f":
        return x.dtype
    return np.result_type(x.dtype, run.dtype(check_dtype(accumulate)))


def wider_dtype(dtype: DType, accumulate: str = "f32") -> DType:
    """``dtype`` or ``accumulate``, whichever holds more; integers stay what they are."""
    wide = check_dtype(accumulate)
    return wide if dtype in FLOATS and item_bytes(dtype) < item_bytes(wide) else dtype


def widen(b: Builder, x: Value, accumulate: str = "f32") -> Value:
    """``x`` cast to the dtype it is accumulated in; ``x`` itself where that is its dtype."""
    return narrow(b, x, wider_dtype(x.type.dtype, accumulate))


def narrow(b: Builder, x: Value, dtype: DType) -> Value:
    """``x`` cast to ``dtype``; ``x`` itself where it has it already."""
    return x if x.type.dtype == dtype else b(Cast(dtype), x)
