"""Matrix products and normalizations."""

from __future__ import annotations

import numpy as np

from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_onnxruntime.emit import ONNX_DTYPES, Emit, Emitter, fixed_shape

__all__ = ["EMITTERS"]


def _matmul(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("MatMul", *inputs)]


def _linear(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """MatMul with the transposed weight; then the bias."""
    x, weight, bias = inputs
    key = e.top.weight_keys.get(weight)
    turned = (
        e.one("Transpose", weight, perm=[1, 0]) if key is None else e.weight(key, transpose=True)
    )
    y = e.one("MatMul", x, turned)
    return [e.one("Add", y, bias) if bias else y]


def _joined_linear(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """One MatMul and a Split."""
    a = op.defn.attributes()
    y = e.one("MatMul", inputs[0], e.joined_weight(a["keys"]))
    return e.node("Split", [y, e.ints(*a["sizes"])], len(op.results), axis=-1)


def _rms_norm(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    x, weight = inputs
    return [
        e.one(
            "RMSNormalization",
            x,
            weight or _ones(e, op),
            axis=-1,
            epsilon=a["eps"],
            stash_type=ONNX_DTYPES["f32"],
        )
    ]


def _layer_norm(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    x, weight, bias = inputs
    return [
        e.one(
            "LayerNormalization",
            x,
            weight or _ones(e, op),
            bias,
            axis=-1,
            epsilon=a["eps"],
            stash_type=ONNX_DTYPES["f32"],
        )
    ]


def _ones(e: Emitter, op: Op) -> str:
    """The scale that ONNX wants where the IR has none."""
    return e.array(np.ones(fixed_shape(op, 0, -1), NUMPY_DTYPES[op.results[0].type.dtype]))


EMITTERS: dict[str, Emit] = {
    "layer_norm": _layer_norm,
    "linear": _linear,
    "matmul": _matmul,
    "onnxruntime.joined_linear": _joined_linear,
    "rms_norm": _rms_norm,
}
