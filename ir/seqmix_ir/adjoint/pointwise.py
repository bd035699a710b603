"""Rules of functions of single elements: what flows back is multiplied by the local slope."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from seqmix_ir import ops
from seqmix_ir.adjoint.table import RULES, number, rule
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Op, Value
from seqmix_ir.types import FLOATS, check_dtype

__all__: list[str] = []

Slope = Callable[[Builder, Value, Value], Value]
"""``slope(b, x, y)``: the derivative of ``y = f(x)``."""


def _inverse_of(write: Slope) -> Slope:
    return lambda b, x, y: b(ops.Reciprocal(), write(b, x, y))


def _one_minus_square(b: Builder, x: Value) -> Value:
    return b(ops.Sub(), number(b, x, 1.0), b(ops.Mul(), x, x))


def _one_plus_square(b: Builder, x: Value) -> Value:
    return b(ops.Add(), number(b, x, 1.0), b(ops.Mul(), x, x))


def _erf(b: Builder, x: Value, y: Value) -> Value:
    bell = b(ops.Exp(), b(ops.Neg(), b(ops.Mul(), x, x)))
    return b(ops.Mul(), bell, number(b, x, 2 / math.sqrt(math.pi)))


def _relu(b: Builder, x: Value, y: Value) -> Value:
    zero = number(b, x, 0.0)
    return b(ops.Where(), b(ops.Greater(), x, zero), number(b, x, 1.0), zero)


def _sigmoid(b: Builder, x: Value, y: Value) -> Value:
    return b(ops.Mul(), y, b(ops.Sub(), number(b, x, 1.0), y))


def _silu(b: Builder, x: Value, y: Value) -> Value:
    s = b(ops.Sigmoid(), x)
    return b(ops.Add(), s, b(ops.Mul(), y, b(ops.Sub(), number(b, x, 1.0), s)))


def _sqrt(b: Builder, x: Value, y: Value) -> Value:
    return b(ops.Mul(), number(b, x, 0.5), b(ops.Reciprocal(), y))


def _acosh(b: Builder, x: Value, y: Value) -> Value:
    one = number(b, x, 1.0)
    below, above = b(ops.Sub(), x, one), b(ops.Add(), x, one)
    return b(ops.Mul(), b(ops.Sqrt(), below), b(ops.Sqrt(), above))


def _asin(b: Builder, x: Value, y: Value) -> Value:
    one = number(b, x, 1.0)
    return b(ops.Sqrt(), b(ops.Mul(), b(ops.Sub(), one, x), b(ops.Add(), one, x)))


_SLOPES: Mapping[type[OpDef], Slope] = {
    ops.Abs: lambda b, x, y: b(ops.Sign(), x),
    ops.Acos: lambda b, x, y: b(ops.Neg(), b(ops.Reciprocal(), _asin(b, x, y))),
    ops.Acosh: _inverse_of(_acosh),
    ops.Asin: _inverse_of(_asin),
    ops.Asinh: _inverse_of(lambda b, x, y: b(ops.Sqrt(), _one_plus_square(b, x))),
    ops.Atan: _inverse_of(lambda b, x, y: _one_plus_square(b, x)),
    ops.Atanh: _inverse_of(lambda b, x, y: _one_minus_square(b, x)),
    ops.Cos: lambda b, x, y: b(ops.Neg(), b(ops.Sin(), x)),
    ops.Cosh: lambda b, x, y: b(ops.Sinh(), x),
    ops.Erf: _erf,
    ops.Exp: lambda b, x, y: y,
    ops.Expm1: lambda b, x, y: b(ops.Exp(), x),
    ops.Log: lambda b, x, y: b(ops.Reciprocal(), x),
    ops.Log1p: _inverse_of(lambda b, x, y: b(ops.Add(), number(b, x, 1.0), x)),
    ops.Reciprocal: lambda b, x, y: b(ops.Neg(), b(ops.Mul(), y, y)),
    ops.Relu: _relu,
    ops.Sigmoid: _sigmoid,
    ops.Silu: _silu,
    ops.Sin: lambda b, x, y: b(ops.Cos(), x),
    ops.Sinh: lambda b, x, y: b(ops.Cosh(), x),
    ops.Softplus: lambda b, x, y: b(ops.Sigmoid(), x),
    ops.Sqrt: _sqrt,
    ops.Tan: lambda b, x, y: _one_plus_square(b, y),
    ops.Tanh: lambda b, x, y: _one_minus_square(b, y),
}


def _by_slope(slope: Slope) -> Callable[..., tuple[Value | None, ...]]:
    def pull(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
        return (b(ops.Mul(), g, slope(b, op.values[0], op.results[0])),)

    return pull


RULES.update({cls: _by_slope(slope) for cls, slope in _SLOPES.items()})


@rule(ops.Floor, ops.Ceil, ops.Round, ops.Sign)
def _flat(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """Steps: the slope is 0 wherever there is one."""
    return (None,)


@rule(ops.Neg)
def _neg(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return (b(ops.Neg(), g),)


@rule(ops.ClipGradient)
def _clip_gradient(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """The one op whose rule is not its derivative."""
    limit = op.defn.attributes()["limit"]
    above = b(ops.Maximum(), g, number(b, g, -limit))
    return (b(ops.Minimum(), above, number(b, g, limit)),)


@rule(ops.Cast)
def _cast(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    dtype = op.values[0].type.dtype
    return (b(ops.Cast(check_dtype(dtype)), g) if dtype in FLOATS else None,)
