"""Rules for arithmetic, and for functions of one element that are ops of the IR."""

from __future__ import annotations

import math
from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Abs,
    Add,
    And,
    Ceil,
    Cos,
    Div,
    Erf,
    Exp,
    Floor,
    FloorDiv,
    Less,
    Log,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Neg,
    NotEqual,
    Or,
    Pow,
    Reciprocal,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Tanh,
    Where,
)
from seqmix_ir.types import FLOATS

__all__ = ["clamped", "truncated"]

_UNARY: dict[str, OpDef] = {
    "abs": Abs(),
    "absolute": Abs(),
    "neg": Neg(),
    "negative": Neg(),
    "exp": Exp(),
    "log": Log(),
    "sqrt": Sqrt(),
    "reciprocal": Reciprocal(),
    "sin": Sin(),
    "cos": Cos(),
    "tanh": Tanh(),
    "sigmoid": Sigmoid(),
    "relu": Relu(),
    "silu": Silu(),
    "erf": Erf(),
    "floor": Floor(),
    "ceil": Ceil(),
    "round": Round(),
    "sign": Sign(),
}
_BINARY: dict[str, OpDef] = {
    "mul.Tensor": Mul(),
    "mul.Scalar": Mul(),
    "div.Tensor": Div(),
    "div.Scalar": Div(),
    "true_divide.Tensor": Div(),
    "divide.Tensor": Div(),
    "multiply.Tensor": Mul(),
    "maximum": Maximum(),
    "minimum": Minimum(),
    "max.other": Maximum(),
    "min.other": Minimum(),
    "floor_divide": FloorDiv(),
    "floor_divide.Scalar": FloorDiv(),
    "remainder.Tensor": Mod(),
    "remainder.Scalar": Mod(),
}


def _unary(name: str, defn: OpDef) -> None:
    def rule(c: Call, x: Value) -> Value:
        # Rounding integers changes nothing, and torch promotes them for the rest.
        if name in ("floor", "ceil", "round") and x.type.dtype[0] in "iu":
            return x
        return c.b(defn, c.cast(x, c.dtype))

    aten(name)(rule)


def _binary(name: str, defn: OpDef) -> None:
    def rule(c: Call, x: Any, y: Any) -> Value:
        return c.b(defn, c.operand(x, c.dtype), c.operand(y, c.dtype))

    if not isinstance(defn, Mul):
        aten(name)(rule)
        return

    def multiply(c: Call, x: Any, y: Any) -> Value:
        # The product of two bools is their conjunction.
        kind = And() if c.dtype == "bool" else defn
        return c.b(kind, c.operand(x, c.dtype), c.operand(y, c.dtype))

    aten(name)(multiply)


for _name, _defn in _UNARY.items():
    _unary(_name, _defn)
for _name, _defn in _BINARY.items():
    _binary(_name, _defn)


@aten("add.Tensor", "add.Scalar")
def _add(c: Call, x: Any, y: Any, alpha: Any = 1) -> Value:
    if c.dtype == "bool":
        return c.b(Or(), c.operand(x, "bool"), c.operand(y, "bool"))
    return c.b(Add(), c.operand(x, c.dtype), _times(c, y, alpha))


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(c: Call, x: Any, y: Any, alpha: Any = 1) -> Value:
    return c.b(Sub(), c.operand(x, c.dtype), _times(c, y, alpha))


@aten("rsub.Tensor", "rsub.Scalar")
def _rsub(c: Call, x: Any, y: Any, alpha: Any = 1) -> Value:
    return c.b(Sub(), c.operand(y, c.dtype), _times(c, x, alpha))


def _times(c: Call, y: Any, factor: Any) -> Value:
    value = c.operand(y, c.dtype)
    return value if factor == 1 else c.b(Mul(), value, c.scalar(factor, c.dtype))


@aten("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(c: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "trunc":
        return _truncated_quotient(c, c.operand(x, c.dtype), c.operand(y, c.dtype))
    kind = FloorDiv() if rounding_mode == "floor" else Div()
    return c.b(kind, c.operand(x, c.dtype), c.operand(y, c.dtype))


def _truncated_quotient(c: Call, x: Value, y: Value) -> Value:
    """The quotient without its fraction; of integers the floor, plus 1 where that is too low."""
    if c.dtype in FLOATS:
        return truncated(c, c.b(Div(), x, y))
    zero, one = c.scalar(0, c.dtype), c.scalar(1, c.dtype)
    floor, rest = c.b(FloorDiv(), x, y), c.b(Mod(), x, y)
    apart = c.b(NotEqual(), c.b(Less(), x, zero), c.b(Less(), y, zero))
    low = c.b(And(), apart, c.b(NotEqual(), rest, zero))
    return c.b(Where(), low, c.b(Add(), floor, one), floor)


def truncated(c: Call, x: Value) -> Value:
    """``x`` rounded towards 0."""
    below = c.b(Less(), x, c.scalar(0, x.type.dtype))
    return c.b(Where(), below, c.b(Ceil(), x), c.b(Floor(), x))


@aten("addcmul")
def _addcmul(c: Call, x: Value, y: Value, z: Value, value: Any = 1) -> Value:
    product = c.b(Mul(), c.cast(y, c.dtype), c.cast(z, c.dtype))
    return c.b(Add(), c.cast(x, c.dtype), _times(c, product, value))


@aten("lerp.Tensor", "lerp.Scalar")
def _lerp(c: Call, x: Value, y: Value, weight: Any) -> Value:
    return c.b(Add(), x, c.b(Mul(), c.b(Sub(), y, x), c.operand(weight, c.dtype)))


@aten("pow.Tensor_Scalar")
def _pow_scalar(c: Call, x: Value, exponent: Any) -> Value:
    x = c.cast(x, c.dtype)
    if exponent in (1, 2, 3):
        power = x
        for _ in range(int(exponent) - 1):
            power = c.b(Mul(), power, x)
        return power
    if c.dtype[0] in "iu":
        raise c.refuse(f"the IR has no integer power of {exponent}", "cast to float first")
    if exponent == 0.5:
        return c.b(Sqrt(), x)
    if exponent in (-1, -0.5):
        return c.b(Reciprocal(), x if exponent == -1 else c.b(Sqrt(), x))
    return c.b(Pow(), x, c.scalar(exponent, c.dtype))


@aten("pow.Tensor_Tensor", "pow.Scalar")
def _pow(c: Call, x: Any, exponent: Value) -> Value:
    if c.dtype[0] in "iu":
        raise c.refuse("the IR has no power of integers", "cast to float first")
    return c.b(Pow(), c.operand(x, c.dtype), c.operand(exponent, c.dtype))


@aten("rsqrt")
def _rsqrt(c: Call, x: Value) -> Value:
    return c.b(Reciprocal(), c.b(Sqrt(), c.cast(x, c.dtype)))


@aten("square")
def _square(c: Call, x: Value) -> Value:
    return c.b(Mul(), x, x)


@aten("exp2")
def _exp2(c: Call, x: Value) -> Value:
    x = c.cast(x, c.dtype)
    return c.b(Exp(), c.b(Mul(), x, c.scalar(math.log(2), c.dtype)))


@aten("logaddexp")
def _logaddexp(c: Call, x: Value, y: Value) -> Value:
    gap = c.b(Neg(), c.b(Abs(), c.b(Sub(), x, y)))
    # softplus(-|x - y|) = log(1 + exp(-|x - y|)), which cannot overflow.
    return c.b(Add(), c.b(Maximum(), x, y), c.b(Softplus(), gap))


@aten("clamp", "clip", "clamp.Tensor", "clip.Tensor")
def _clamp(c: Call, x: Value, min: Any = None, max: Any = None) -> Value:
    return clamped(c, c.cast(x, c.dtype), min, max)


@aten("clamp_min", "clamp_min.Tensor")
def _clamp_min(c: Call, x: Value, min: Any) -> Value:
    return _clamp(c, x, min)


@aten("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Call, x: Value, max: Any) -> Value:
    return _clamp(c, x, None, max)


def clamped(c: Call, x: Value, min: Any, max: Any) -> Value:
    """``x`` raised to ``min`` and then lowered to ``max``: numbers, values or nothing."""
    dtype = x.type.dtype
    if min is not None:
        x = c.b(Maximum(), x, c.operand(min, dtype))
    return x if max is None else c.b(Minimum(), x, c.operand(max, dtype))
