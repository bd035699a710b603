"""The emitter table: what of the IR has an ONNX form, one module per family."""

from __future__ import annotations

from seqmix_onnxruntime.emit import Emit
from seqmix_onnxruntime.ops import (
    attention,
    conv,
    cumulative,
    fourier,
    index,
    long_range,
    matrix,
    mixers,
    ordering,
    pointwise,
    scan,
    shaping,
    transcendental,
)

__all__ = ["EMITTERS"]

EMITTERS: dict[str, Emit] = {
    **attention.EMITTERS,
    **conv.EMITTERS,
    **cumulative.EMITTERS,
    **fourier.EMITTERS,
    **index.EMITTERS,
    **long_range.EMITTERS,
    **matrix.EMITTERS,
    **mixers.EMITTERS,
    **ordering.EMITTERS,
    **pointwise.EMITTERS,
    **scan.EMITTERS,
    **shaping.EMITTERS,
    **transcendental.EMITTERS,
}
