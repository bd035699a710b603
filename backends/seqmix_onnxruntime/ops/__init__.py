"""The emitter table: what of the IR has an ONNX form, one module per family."""

from __future__ import annotations

from seqmix_onnxruntime.emit import Emit
from seqmix_onnxruntime.ops import attention, index, matrix, mixers, pointwise, scan, shaping

__all__ = ["EMITTERS"]

EMITTERS: dict[str, Emit] = {
    **attention.EMITTERS,
    **index.EMITTERS,
    **matrix.EMITTERS,
    **mixers.EMITTERS,
    **pointwise.EMITTERS,
    **scan.EMITTERS,
    **shaping.EMITTERS,
}
