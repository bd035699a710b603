"""Elementwise ops, reductions and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.types import FLOATS, check_dtype
from seqmix_onnxruntime.emit import ONNX_DTYPES, Emit, Emitter

__all__ = ["EMITTERS"]

_DIRECT = {
    "abs": "Abs",
    "add": "Add",
    "and": "And",
    "ceil": "Ceil",
    "cos": "Cos",
    "div": "Div",
    "equal": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "log": "Log",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "not": "Not",
    "or": "Or",
    "pow": "Pow",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "softplus": "Softplus",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
}
_REDUCTIONS = {
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
}


def _direct(kind: str) -> Emit:
    return lambda e, op, inputs: [e.one(kind, *inputs)]


def _not_equal(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Not", e.one("Equal", *inputs))]


def _mod(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """The sign is that of the divisor; for floats ONNX has only the other kind."""
    if op.results[0].type.dtype not in FLOATS:
        return [e.one("Mod", *inputs)]
    x, y = inputs
    quotient = e.one("Floor", e.one("Div", x, y))
    return [e.one("Sub", x, e.one("Mul", quotient, y))]


def _floor_div(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    x, y = inputs
    if op.results[0].type.dtype in FLOATS:
        return [e.one("Floor", e.one("Div", x, y))]
    # Integer Div truncates; without the remainder it is exact.
    return [e.one("Div", e.one("Sub", x, e.one("Mod", x, y)), y)]


def _where(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """There is no kernel that chooses between bools, but logic can."""
    if op.results[0].type.dtype != "bool":
        return [e.one("Where", *inputs)]
    condition, x, y = inputs
    otherwise = e.one("And", e.one("Not", condition), y)
    return [e.one("Or", e.one("And", condition, x), otherwise)]


def _silu(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    (x,) = inputs
    return [e.one("Mul", x, e.one("Sigmoid", x))]


def _gelu(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Gelu", *inputs, approximate=op.defn.attributes()["approximate"])]


def _cast(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Cast", *inputs, to=ONNX_DTYPES[op.results[0].type.dtype])]


def _constant(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    attributes = op.defn.attributes()
    dtype = NUMPY_DTYPES[check_dtype(attributes["dtype"])]
    return [e.array(np.array(attributes["value"], dtype))]


def _weight(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.weight(op.defn.attributes()["key"])]


def _size(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    scalar = e.array(np.array([], np.int64))
    return [e.one("Reshape", e.size(op.defn.attributes()["value"]), scalar)]


def _iota(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    attributes = op.defn.attributes()
    scalar = e.array(np.array([], np.int64))
    limit = e.one("Reshape", e.size(attributes["length"]), scalar)
    zero, step = e.array(np.array(0, np.int64)), e.array(np.array(1, np.int64))
    y = e.one("Range", zero, limit, step)
    dtype = op.results[0].type.dtype
    return [y if dtype == "i64" else e.one("Cast", y, to=ONNX_DTYPES[dtype])]


def _reduce(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    if a["kind"] not in _REDUCTIONS:
        return _reduce_logic(e, a, inputs)
    axes = e.ints(*a["axes"])
    return [e.one(_REDUCTIONS[a["kind"]], inputs[0], axes, keepdims=int(a["keepdims"]))]


def _reduce_logic(e: Emitter, attributes: dict[str, Any], inputs: list[str]) -> list[str]:
    """``any`` and ``all`` are the largest and the smallest of zeros and ones."""
    kind = "ReduceMax" if attributes["kind"] == "any" else "ReduceMin"
    number = e.one("Cast", inputs[0], to=ONNX_DTYPES["i32"])
    axes = e.ints(*attributes["axes"])
    reduced = e.one(kind, number, axes, keepdims=int(attributes["keepdims"]))
    return [e.one("Cast", reduced, to=ONNX_DTYPES["bool"])]


def _argmax(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    return [e.one("ArgMax", *inputs, axis=a["axis"], keepdims=int(a["keepdims"]))]


def _softmax(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Softmax", *inputs, axis=op.defn.attributes()["axis"])]


def _cumsum(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    axis = e.array(np.array(a["axis"], np.int64))
    return [
        e.one("CumSum", *inputs, axis, exclusive=int(a["exclusive"]), reverse=int(a["reverse"]))
    ]


EMITTERS: dict[str, Emit] = {
    **{name: _direct(kind) for name, kind in _DIRECT.items()},
    "argmax": _argmax,
    "cast": _cast,
    "constant": _constant,
    "cumsum": _cumsum,
    "floor_div": _floor_div,
    "gelu": _gelu,
    "iota": _iota,
    "mod": _mod,
    "not_equal": _not_equal,
    "reduce": _reduce,
    "silu": _silu,
    "size": _size,
    "softmax": _softmax,
    "weight": _weight,
    "where": _where,
}
