"""Rules for activation functions of one element each, and for gates."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix.capture.aten_pointwise import clamped
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Abs,
    Div,
    Expm1,
    Gelu,
    Greater,
    LessEqual,
    Log,
    Minimum,
    Mul,
    Neg,
    Reshape,
    Sigmoid,
    Slice,
    Softplus,
    Sub,
    Tanh,
    Where,
)
from seqmix_ir.ops.precision import narrow, widen

__all__: list[str] = []

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@aten("gelu")
def _gelu(c: Call, x: Value, approximate: str = "none") -> Value:
    return c.b(Gelu(approximate), x)


@aten("softplus")
def _softplus(c: Call, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if beta == 1:
        return c.b(Softplus(), x)
    scaled = c.b(Softplus(), c.b(Mul(), x, c.scalar(beta, c.dtype)))
    return c.b(Div(), scaled, c.scalar(beta, c.dtype))


@aten("log_sigmoid")
def _log_sigmoid(c: Call, x: Value) -> Value:
    return c.b(Neg(), c.b(Softplus(), c.b(Neg(), x)))


@aten("leaky_relu")
def _leaky_relu(c: Call, x: Value, slope: float = 0.01) -> Value:
    return _sloped(c, x, c.scalar(slope, c.dtype))


@aten("prelu")
def _prelu(c: Call, x: Value, weight: Value) -> Value:
    """One slope for all, or one per channel: axis 1."""
    count = weight.type.shape[0] if weight.type.rank else 1
    rank = max(x.type.rank - 2, 0)
    shape = (count, *[1] * rank) if x.type.rank > 1 else (count,) if x.type.rank else ()
    return _sloped(c, x, c.b(Reshape(shape), weight))


@aten("rrelu")
def _rrelu(
    c: Call,
    x: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *rest: Any,
) -> Value:
    if training:
        raise c.refuse("rrelu draws random slopes in training", "call .eval() before capture")
    return _sloped(c, x, c.scalar((lower + upper) / 2, c.dtype))


def _sloped(c: Call, x: Value, slope: Value) -> Value:
    positive = c.b(Greater(), x, c.scalar(0, c.dtype))
    return c.b(Where(), positive, x, c.b(Mul(), x, slope))


@aten("elu")
def _elu(c: Call, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """``scale * x`` above 0, else ``scale * alpha * expm1(input_scale * x)``."""
    wide = widen(c.b, x)
    zero = _number(c, wide, 0)
    # expm1 is taken of the negative part only: it cannot overflow where it is not chosen.
    below = c.b(Minimum(), _scaled(c, wide, input_scale), zero)
    below = _scaled(c, c.b(Expm1(), below), alpha * scale)
    y = c.b(Where(), c.b(Greater(), wide, zero), _scaled(c, wide, scale), below)
    return narrow(c.b, y, c.dtype)


@aten("celu")
def _celu(c: Call, x: Value, alpha: float = 1) -> Value:
    return _elu(c, x, alpha, 1, 1 / alpha)


@aten("selu")
def _selu(c: Call, x: Value) -> Value:
    return _elu(c, x, _SELU_ALPHA, _SELU_SCALE)


@aten("mish")
def _mish(c: Call, x: Value) -> Value:
    wide = widen(c.b, x)
    return narrow(c.b, c.b(Mul(), wide, c.b(Tanh(), c.b(Softplus(), wide))), c.dtype)


@aten("hardtanh", "relu6")
def _hardtanh(c: Call, x: Value, min: Any = None, max: Any = None) -> Value:
    low, high = (0, 6) if "relu6" in str(c.node.target) else (-1, 1)
    return clamped(c, x, low if min is None else min, high if max is None else max)


@aten("hardsigmoid")
def _hardsigmoid(c: Call, x: Value) -> Value:
    return narrow(c.b, _hard_gate(c, widen(c.b, x)), c.dtype)


@aten("hardswish")
def _hardswish(c: Call, x: Value) -> Value:
    wide = widen(c.b, x)
    return narrow(c.b, c.b(Mul(), wide, _hard_gate(c, wide)), c.dtype)


def _hard_gate(c: Call, x: Value) -> Value:
    """``min(max(x + 3, 0), 6) / 6``."""
    shifted = c.b(Sub(), x, _number(c, x, -3))
    return c.b(Div(), clamped(c, shifted, 0, 6), _number(c, x, 6))


@aten("hardshrink")
def _hardshrink(c: Call, x: Value, width: float = 0.5) -> Value:
    small = c.b(LessEqual(), c.b(Abs(), x), c.scalar(width, c.dtype))
    return c.b(Where(), small, c.scalar(0, c.dtype), x)


@aten("softshrink")
def _softshrink(c: Call, x: Value, width: float = 0.5) -> Value:
    """What of ``x`` lies beyond the width, on either side."""
    return c.b(Sub(), x, clamped(c, x, -width, width))


@aten("threshold")
def _threshold(c: Call, x: Value, threshold: float, value: float) -> Value:
    below = c.b(LessEqual(), x, c.scalar(threshold, c.dtype))
    return c.b(Where(), below, c.scalar(value, c.dtype), x)


@aten("glu")
def _glu(c: Call, x: Value, axis: int = -1) -> Value:
    axis = axis % x.type.rank
    half = c.shape[axis]
    value, gate = c.b(Slice(axis, 0, half), x), c.b(Slice(axis, half, half + half), x)
    return c.b(Mul(), value, c.b(Sigmoid(), gate))


@aten("logit")
def _logit(c: Call, x: Value, eps: float | None = None) -> Value:
    x = c.cast(x, c.dtype)
    if eps is not None:
        x = clamped(c, x, eps, 1 - eps)
    return c.b(Log(), c.b(Div(), x, c.b(Sub(), c.scalar(1, c.dtype), x)))


def _scaled(c: Call, x: Value, factor: float) -> Value:
    return x if factor == 1 else c.b(Mul(), x, _number(c, x, factor))


def _number(c: Call, like: Value, value: float) -> Value:
    return c.scalar(value, like.type.dtype)
