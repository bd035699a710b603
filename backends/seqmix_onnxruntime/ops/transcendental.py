"""Tangent, arc and hyperbolic functions; expm1 and log1p are decomposed."""

from __future__ import annotations

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]

_KINDS = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")


def _direct(kind: str) -> Emit:
    def emit(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
        return [e.one(kind, *inputs)]

    return emit


EMITTERS: dict[str, Emit] = {kind.lower(): _direct(kind) for kind in _KINDS}
