"""Rules for mathematics beyond arithmetic: logarithms, angles, rounding, tests for NaN and inf."""

from __future__ import annotations

import math
from typing import Any

import torch

from seqmix.capture.aten import Call, aten
from seqmix.capture.aten_pointwise import truncated
from seqmix.dtypes import torch_dtype
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Abs,
    Acos,
    Acosh,
    Add,
    And,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Cosh,
    Div,
    Equal,
    Expm1,
    Greater,
    Less,
    LessEqual,
    Log,
    Log1p,
    Maximum,
    Minimum,
    Mod,
    Mul,
    NotEqual,
    Sign,
    Sinh,
    Sqrt,
    Sub,
    Tan,
    Where,
)
from seqmix_ir.types import FLOATS

__all__: list[str] = []

_FUNCTIONS: dict[str, OpDef] = {
    "acos": Acos(),
    "acosh": Acosh(),
    "asin": Asin(),
    "asinh": Asinh(),
    "atan": Atan(),
    "atanh": Atanh(),
    "cosh": Cosh(),
    "expm1": Expm1(),
    "log1p": Log1p(),
    "sinh": Sinh(),
    "tan": Tan(),
}


def _function(name: str, defn: OpDef) -> None:
    def rule(c: Call, x: Value) -> Value:
        return c.b(defn, c.cast(x, c.dtype))

    aten(name)(rule)


for _name, _defn in _FUNCTIONS.items():
    _function(_name, _defn)


@aten("log2", "log10")
def _log(c: Call, x: Value) -> Value:
    base = 2 if "log2" in str(c.node.target) else 10
    x = c.cast(x, c.dtype)
    return c.b(Mul(), c.b(Log(), x), c.scalar(1 / math.log(base), c.dtype))


@aten("trunc", "fix")
def _trunc(c: Call, x: Value) -> Value:
    return truncated(c, x) if c.dtype in FLOATS else x


@aten("frac")
def _frac(c: Call, x: Value) -> Value:
    return c.b(Sub(), x, truncated(c, x))


@aten("fmod.Tensor", "fmod.Scalar")
def _fmod(c: Call, x: Any, y: Any) -> Value:
    """The remainder with the sign of ``x``; that of ``mod`` has the sign of ``y``."""
    x, y = c.operand(x, c.dtype), c.operand(y, c.dtype)
    zero, rest = c.scalar(0, c.dtype), c.b(Mod(), x, y)
    apart = c.b(NotEqual(), c.b(Less(), x, zero), c.b(Less(), rest, zero))
    wrong = c.b(And(), apart, c.b(NotEqual(), rest, zero))
    return c.b(Where(), wrong, c.b(Sub(), rest, y), rest)


@aten("sgn")
def _sgn(c: Call, x: Value) -> Value:
    return c.b(Sign(), x)


@aten("atan2", "arctan2")
def _atan2(c: Call, y: Value, x: Value) -> Value:
    """The angle of the point (x, y). Zeros count as +0, and of two infinities it is NaN."""
    x, y = c.cast(x, c.dtype), c.cast(y, c.dtype)
    zero, pi = c.scalar(0, c.dtype), c.scalar(math.pi, c.dtype)
    half = c.b(Mul(), c.b(Sign(), y), c.scalar(math.pi / 2, c.dtype))
    upright = c.b(Equal(), x, zero)
    safe = c.b(Where(), upright, c.scalar(1, c.dtype), x)
    angle = c.b(Atan(), c.b(Div(), y, safe))
    turn = c.b(Where(), c.b(Less(), y, zero), c.b(Sub(), zero, pi), pi)
    angle = c.b(Where(), c.b(Less(), x, zero), c.b(Add(), angle, turn), angle)
    return c.b(Where(), upright, half, angle)


@aten("hypot")
def _hypot(c: Call, x: Value, y: Value) -> Value:
    """``top * sqrt(1 + (low / top)^2)``, which does not overflow."""
    x, y = c.b(Abs(), c.cast(x, c.dtype)), c.b(Abs(), c.cast(y, c.dtype))
    top, low = c.b(Maximum(), x, y), c.b(Minimum(), x, y)
    one = c.scalar(1, c.dtype)
    nothing = c.b(Equal(), top, c.scalar(0, c.dtype))
    ratio = c.b(Div(), low, c.b(Where(), nothing, one, top))
    return c.b(Mul(), top, c.b(Sqrt(), c.b(Add(), one, c.b(Mul(), ratio, ratio))))


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def _xlogy(c: Call, x: Any, y: Any) -> Value:
    x, y = c.operand(x, c.dtype), c.operand(y, c.dtype)
    nothing = c.b(And(), c.b(Equal(), x, c.scalar(0, c.dtype)), c.b(Equal(), y, y))
    return c.b(Where(), nothing, c.scalar(0, c.dtype), c.b(Mul(), x, c.b(Log(), y)))


@aten("addcdiv")
def _addcdiv(c: Call, x: Value, y: Value, z: Value, value: Any = 1) -> Value:
    ratio = c.b(Div(), c.cast(y, c.dtype), c.cast(z, c.dtype))
    scaled = ratio if value == 1 else c.b(Mul(), ratio, c.scalar(value, c.dtype))
    return c.b(Add(), c.cast(x, c.dtype), scaled)


@aten("isnan")
def _isnan(c: Call, x: Value) -> Value:
    return c.b(NotEqual(), x, x)


@aten("isinf")
def _isinf(c: Call, x: Value) -> Value:
    return c.b(Equal(), *_size_and_limit(c, x))


@aten("isfinite")
def _isfinite(c: Call, x: Value) -> Value:
    return c.b(Less(), *_size_and_limit(c, x))


@aten("isposinf", "isneginf")
def _is_signed_inf(c: Call, x: Value) -> Value:
    sign = 1 if "pos" in str(c.node.target) else -1
    wide = _as_float(c, x)
    return c.b(Equal(), wide, c.scalar(sign * math.inf, wide.type.dtype))


def _size_and_limit(c: Call, x: Value) -> tuple[Value, Value]:
    wide = _as_float(c, x)
    return c.b(Abs(), wide), c.scalar(math.inf, wide.type.dtype)


def _as_float(c: Call, x: Value) -> Value:
    return x if x.type.dtype in FLOATS else c.cast(x, "f32")


@aten("nan_to_num")
def _nan_to_num(
    c: Call,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    if c.dtype not in FLOATS:
        return x
    limits = torch.finfo(torch_dtype(c.dtype))
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    y = c.b(Where(), c.b(NotEqual(), x, x), c.scalar(nan or 0.0, c.dtype), x)
    top = c.b(Equal(), x, c.scalar(math.inf, c.dtype))
    y = c.b(Where(), top, c.scalar(high, c.dtype), y)
    bottom = c.b(Equal(), x, c.scalar(-math.inf, c.dtype))
    return c.b(Where(), bottom, c.scalar(low, c.dtype), y)


@aten("fmax", "fmin")
def _ignore_nan(c: Call, x: Value, y: Value) -> Value:
    """The larger or smaller one; the other one where one of them is NaN."""
    x, y = c.cast(x, c.dtype), c.cast(y, c.dtype)
    best = c.b(Maximum() if "fmax" in str(c.node.target) else Minimum(), x, y)
    best = c.b(Where(), c.b(NotEqual(), x, x), y, best)
    return c.b(Where(), c.b(NotEqual(), y, y), x, best)


@aten("heaviside")
def _heaviside(c: Call, x: Value, at_zero: Value) -> Value:
    zero = c.scalar(0, c.dtype)
    step = c.cast(c.b(Greater(), x, zero), c.dtype)
    return c.b(Where(), c.b(Equal(), x, zero), at_zero, step)


@aten("isclose")
def _isclose(
    c: Call, x: Value, y: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    if equal_nan or x.type.dtype not in FLOATS:
        raise c.refuse("isclose with equal_nan or of integers is not in the IR", "use ==")
    dtype = x.type.dtype
    gap, limit = c.b(Abs(), c.b(Sub(), x, y)), c.b(Abs(), y)
    limit = c.b(Add(), c.scalar(atol, dtype), c.b(Mul(), c.scalar(rtol, dtype), limit))
    near = c.b(And(), c.b(LessEqual(), gap, limit), c.b(Less(), gap, c.scalar(math.inf, dtype)))
    return c.b(NotEqual(), c.b(And(), near, c.b(NotEqual(), x, y)), c.b(Equal(), x, y))
