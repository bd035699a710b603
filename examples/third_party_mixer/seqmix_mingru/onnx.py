"""The op ``mingru.positive`` in ONNX, without the comparison that its decomposition needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES

if TYPE_CHECKING:
    from seqmix_onnxruntime.emit import Emitter

__all__ = ["emit_positive"]


def emit_positive(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """``max(x, 0) + sigmoid(min(x, 0))``; the name of the result.

    The first term is 0 below the seam, the second 1/2 above it.
    """
    (x,), (name,) = op.values, inputs
    zero = e.array(np.zeros((), NUMPY_DTYPES[x.type.dtype]))
    below = e.one("Sigmoid", e.one("Min", name, zero))
    return [e.one("Add", e.one("Relu", name), below)]
