"""Rules for arithmetic, comparison, logic, choice and activations."""

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
    Equal,
    Erf,
    Exp,
    Floor,
    FloorDiv,
    Gelu,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Log,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Neg,
    Not,
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

__all__: list[str] = []

_UNARY: dict[str, OpDef] = {
    "abs": Abs(),
    "neg": Neg(),
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
    "maximum": Maximum(),
    "minimum": Minimum(),
    "max.other": Maximum(),
    "min.other": Minimum(),
    "floor_divide": FloorDiv(),
    "floor_divide.Scalar": FloorDiv(),
    "remainder.Tensor": Mod(),
    "remainder.Scalar": Mod(),
}
_COMPARE: dict[str, OpDef] = {
    "eq": Equal(),
    "ne": NotEqual(),
    "lt": Less(),
    "le": LessEqual(),
    "gt": Greater(),
    "ge": GreaterEqual(),
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


def _compare(name: str, defn: OpDef) -> None:
    def rule(c: Call, x: Any, y: Any) -> Value:
        dtype = c.common_dtype()
        if dtype == "bool" and name not in ("eq", "ne"):
            dtype = "i64"
        return c.b(defn, c.operand(x, dtype), c.operand(y, dtype))

    aten(f"{name}.Tensor", f"{name}.Scalar")(rule)


for _name, _defn in _UNARY.items():
    _unary(_name, _defn)
for _name, _defn in _BINARY.items():
    _binary(_name, _defn)
for _name, _defn in _COMPARE.items():
    _compare(_name, _defn)


@aten("add.Tensor", "add.Scalar")
def _add(c: Call, x: Any, y: Any, alpha: Any = 1) -> Value:
    if c.dtype == "bool":
        return c.b(Or(), c.operand(x, "bool"), c.operand(y, "bool"))
    return c.b(Add(), c.operand(x, c.dtype), _times(c, y, alpha))


@aten("sub.Tensor", "sub.Scalar")
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
        raise c.refuse("rounding_mode='trunc' is not in the IR", "use 'floor'")
    kind = FloorDiv() if rounding_mode == "floor" else Div()
    return c.b(kind, c.operand(x, c.dtype), c.operand(y, c.dtype))


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


@aten("clamp", "clip", "clamp.Tensor")
def _clamp(c: Call, x: Value, min: Any = None, max: Any = None) -> Value:
    x = c.cast(x, c.dtype)
    if min is not None:
        x = c.b(Maximum(), x, c.operand(min, c.dtype))
    return x if max is None else c.b(Minimum(), x, c.operand(max, c.dtype))


@aten("clamp_min", "clamp_min.Tensor")
def _clamp_min(c: Call, x: Value, min: Any) -> Value:
    return _clamp(c, x, min)


@aten("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Call, x: Value, max: Any) -> Value:
    return _clamp(c, x, None, max)


@aten("hardtanh", "relu6")
def _hardtanh(c: Call, x: Value, min: Any = None, max: Any = None) -> Value:
    low, high = (0, 6) if "relu6" in str(c.node.target) else (-1, 1)
    return _clamp(c, x, low if min is None else min, high if max is None else max)


@aten("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def _where(c: Call, condition: Value, x: Any, y: Any) -> Value:
    return c.b(Where(), condition, c.operand(x, c.dtype), c.operand(y, c.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Call, x: Value, mask: Value, value: Any) -> Value:
    return c.b(Where(), mask, c.operand(value, c.dtype), x)


@aten("logical_not", "bitwise_not")
def _not(c: Call, x: Value) -> Value:
    _only_bool(c, x)
    return c.b(Not(), c.cast(x, "bool"))


@aten("logical_and", "bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor")
def _and(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(And(), c.operand(x, "bool"), c.operand(y, "bool"))


@aten("logical_or", "bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor")
def _or(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(Or(), c.operand(x, "bool"), c.operand(y, "bool"))


@aten("logical_xor", "bitwise_xor.Tensor", "__xor__.Tensor")
def _xor(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(NotEqual(), c.operand(x, "bool"), c.operand(y, "bool"))


def _only_bool(c: Call, *operands: Any) -> None:
    if "logical" not in str(c.node.target) and c.dtype != "bool":
        raise c.refuse("the IR has no bit operations on integers", "use //, % and *")


@aten("isnan")
def _isnan(c: Call, x: Value) -> Value:
    return c.b(NotEqual(), x, x)


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
    positive = c.b(Greater(), x, c.scalar(0, c.dtype))
    return c.b(Where(), positive, x, c.b(Mul(), x, c.scalar(slope, c.dtype)))


@aten("elu")
def _elu(c: Call, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if scale != 1 or input_scale != 1:
        raise c.refuse("elu with scales is not in the IR", "multiply its result")
    # exp is taken of the negative part only, so it cannot overflow where it is not chosen.
    below = c.b(Exp(), c.b(Minimum(), x, c.scalar(0, c.dtype)))
    below = c.b(Mul(), c.b(Sub(), below, c.scalar(1, c.dtype)), c.scalar(alpha, c.dtype))
    return c.b(Where(), c.b(Greater(), x, c.scalar(0, c.dtype)), x, below)
