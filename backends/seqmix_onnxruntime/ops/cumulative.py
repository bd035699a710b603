"""Running products, extrema and log-sum-exps: a Loop that doubles the reach of each element.

ONNX has a running sum only. The Loop takes log2(S) turns, where a Scan takes S steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper

from seqmix_ir.graph import Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.ops.cumulative import Cumulative
from seqmix_ir.ops.rules import normal_axis
from seqmix_onnxruntime.emit import Emit, Emitter, tensor_info

__all__ = ["EMITTERS"]

Combine: TypeAlias = "Callable[[Emitter, str, str, np.dtype[Any]], str]"
_LAST = np.iinfo(np.int64).max


def _cumulative(combine: Combine) -> Emit:
    def emit(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
        """Turn ``n`` combines every element with the one ``2**n`` places before it."""
        defn, (x,) = op.defn, op.values
        if not isinstance(defn, Cumulative):
            raise TypeError(f"'{op.name}' is no cumulative op")
        axis = normal_axis(defn.axis, x.type.rank)
        start = _shifted(e, inputs[0], x, axis, defn) if defn.exclusive else inputs[0]
        size, one = e.size(x.type.shape[axis]), e.ints(1)
        more = e.one("Squeeze", e.one("Less", one, size))
        body = _body(Emitter(e.root, outer=e), x, axis, defn.reverse, size, combine)
        return e.node("Loop", ["", more, start, one], 2, body=body)[:1]

    return emit


def _body(
    inner: Emitter, x: Value, axis: int, reverse: bool, size: str, combine: Combine
) -> GraphProto:
    """``(turn, more, y, reach) -> (more, y, reach)``, with the reach doubled."""
    turn, more, y, reach = (inner.root.fresh(n) for n in ("turn", "more", "y", "reach"))

    def joined(first: str, last: str) -> str:
        return combine(inner, first, last, _dtype(x))

    wider = _wider(inner, y, reach, axis, reverse, joined)
    double = inner.one("Add", reach, reach)
    again = inner.one("Squeeze", inner.one("Less", double, size))
    flag, vector = partial(_info, TensorProto.BOOL, []), partial(_info, TensorProto.INT64, [1])
    return helper.make_graph(
        inner.nodes,
        inner.root.fresh("body"),
        [_info(TensorProto.INT64, [], turn), flag(more), tensor_info(y, x), vector(reach)],
        [flag(again), tensor_info(wider, x), vector(double)],
    )


def _wider(
    e: Emitter, y: str, reach: str, axis: int, reverse: bool, combine: Callable[..., str]
) -> str:
    """Every element combined with the one ``reach`` before; those before have seen everything."""
    back, axes, last = e.one("Neg", reach), e.ints(axis), e.ints(_LAST)
    front = e.one("Slice", y, e.ints(0), back, axes)
    joined = combine(front, e.one("Slice", y, reach, last, axes))
    if reverse:
        return e.one("Concat", joined, e.one("Slice", y, back, last, axes), axis=axis)
    return e.one("Concat", e.one("Slice", y, e.ints(0), reach, axes), joined, axis=axis)


def _info(kind: int, shape: list[int], name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _dtype(x: Value) -> np.dtype[Any]:
    return NUMPY_DTYPES[x.type.dtype]


def _shifted(e: Emitter, x: str, value: Value, axis: int, defn: Cumulative) -> str:
    """Every element one place on, and in front the one that changes nothing."""
    axes = e.ints(axis)
    neutral = e.array(np.array(defn.neutral(value.type.dtype), _dtype(value)))
    pads = e.ints(0, 1) if defn.reverse else e.ints(1, 0)
    wide = e.one("Pad", x, pads, neutral, axes, mode="constant")
    start, stop = (1, _LAST) if defn.reverse else (0, -1)
    return e.one("Slice", wide, e.ints(start), e.ints(stop), axes)


def _node(kind: str) -> Combine:
    return lambda e, x, y, dtype: e.one(kind, x, y)


def _log_add_exp(e: Emitter, x: str, y: str, dtype: np.dtype[Any]) -> str:
    top = e.one("Max", x, y)
    endless = e.one("Equal", e.one("Abs", top), e.array(np.array(np.inf, dtype)))
    # An infinite top must not be subtracted from itself.
    top = e.one("Where", endless, e.array(np.array(0, dtype)), top)
    parts = [e.one("Exp", e.one("Sub", name, top)) for name in (x, y)]
    return e.one("Add", top, e.one("Log", e.one("Add", *parts)))


EMITTERS: dict[str, Emit] = {
    "cummax": _cumulative(_node("Max")),
    "cummin": _cumulative(_node("Min")),
    "cumprod": _cumulative(_node("Mul")),
    "logcumsumexp": _cumulative(_log_add_exp),
}
