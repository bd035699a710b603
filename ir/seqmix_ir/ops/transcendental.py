"""Tangent, arc and hyperbolic functions, and the two that are exact near 0: expm1 and log1p."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from seqmix_ir.defn import Decomposition, Example, OpDef, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Div, Mul, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Abs, Cos, Exp, Log, Neg, Sign, Sin, Sqrt, Tanh, Unary
from seqmix_ir.ops.logic import Equal, Greater, Where
from seqmix_ir.ops.precision import narrow, widen

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = [
    "OPS",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cosh",
    "Expm1",
    "Log1p",
    "Sinh",
    "Tan",
]


class _Function(Unary):
    """A unary op with one plain form, computed in float32 at least and rounded once."""

    domain: ClassVar[tuple[float, float]] = (-3.0, 3.0)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return (Example(cls(), (rng.uniform(*cls.domain, (2, 5, 3)),)),)

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        return (narrow(b, self.write(b, widen(b, x)), x.type.dtype),)

    def write(self, b: Builder, x: Value) -> Value:
        """The function in simpler ops, for ``x`` in float32 or float64."""
        raise IRError(f"function '{self.name}' does not say how it is written in simpler ops")


@op
class Expm1(_Function):
    """``exp(x) - 1``, exact near 0."""

    name = "expm1"
    function = staticmethod(np.expm1)

    def write(self, b: Builder, x: Value) -> Value:
        # tanh(x / 2) = (exp(x) - 1) / (exp(x) + 1)
        half = b(Tanh(), b(Mul(), x, _number(b, x, 0.5)))
        return b(Mul(), half, b(Add(), b(Exp(), x), _number(b, x, 1)))


@op
class Log1p(_Function):
    """``log(1 + x)``, exact near 0; NaN below -1."""

    name = "log1p"
    domain = (-0.9, 3.0)
    function = staticmethod(np.log1p)

    def write(self, b: Builder, x: Value) -> Value:
        """What rounding lost in ``y = 1 + x`` is made good by the factor ``x / (y - 1)``."""
        one = _number(b, x, 1)
        y = b(Add(), one, x)
        log, kept = b(Log(), y), b(Sub(), y, one)
        nothing = b(Equal(), kept, _number(b, x, 0))
        safe = b(Where(), nothing, one, kept)
        exact = b(Where(), nothing, x, b(Mul(), log, b(Div(), x, safe)))
        return b(Where(), b(Equal(), y, _number(b, x, math.inf)), log, exact)


@op
class Tan(_Function):
    """The tangent, in radians."""

    name = "tan"
    domain = (-1.4, 1.4)
    function = staticmethod(np.tan)

    def write(self, b: Builder, x: Value) -> Value:
        return b(Div(), b(Sin(), x), b(Cos(), x))


@op
class Sinh(_Function):
    """The hyperbolic sine."""

    name = "sinh"
    function = staticmethod(np.sinh)

    def write(self, b: Builder, x: Value) -> Value:
        # Of expm1(x) and expm1(-x) neither loses digits near 0.
        gap = b(Sub(), b(Expm1(), x), b(Expm1(), b(Neg(), x)))
        return b(Mul(), gap, _number(b, x, 0.5))


@op
class Cosh(_Function):
    """The hyperbolic cosine."""

    name = "cosh"
    function = staticmethod(np.cosh)

    def write(self, b: Builder, x: Value) -> Value:
        total = b(Add(), b(Exp(), x), b(Exp(), b(Neg(), x)))
        return b(Mul(), total, _number(b, x, 0.5))


@op
class Atan(_Function):
    """The arc tangent, from -pi/2 to pi/2."""

    name = "atan"
    function = staticmethod(np.arctan)

    def write(self, b: Builder, x: Value) -> Value:
        """Two halvings of the angle bring it near 0, where its series is short."""
        size, one = b(Abs(), x), _number(b, x, 1)
        # atan(t) = pi/2 - atan(1/t) from 1 on.
        large = b(Greater(), size, one)
        t = b(Div(), b(Where(), large, one, size), b(Where(), large, size, one))
        for _ in range(_HALVINGS):
            root = b(Sqrt(), b(Add(), one, b(Mul(), t, t)))
            t = b(Div(), t, b(Add(), one, root))
        angle = b(Mul(), _odd_series(b, t), _number(b, x, 2**_HALVINGS))
        rest = b(Sub(), _number(b, x, math.pi / 2), angle)
        return b(Mul(), b(Sign(), x), b(Where(), large, rest, angle))


@op
class Asin(_Function):
    """The arc sine, from -pi/2 to pi/2; NaN beyond -1 and 1."""

    name = "asin"
    domain = (-1.0, 1.0)
    function = staticmethod(np.arcsin)

    def write(self, b: Builder, x: Value) -> Value:
        one = _number(b, x, 1)
        square = b(Mul(), b(Sub(), one, x), b(Add(), one, x))
        return b(Atan(), b(Div(), x, b(Sqrt(), square)))


@op
class Acos(_Function):
    """The arc cosine, from 0 to pi; NaN beyond -1 and 1."""

    name = "acos"
    domain = (-1.0, 1.0)
    function = staticmethod(np.arccos)

    def write(self, b: Builder, x: Value) -> Value:
        one = _number(b, x, 1)
        ratio = b(Div(), b(Sub(), one, x), b(Add(), one, x))
        return b(Mul(), b(Atan(), b(Sqrt(), ratio)), _number(b, x, 2))


@op
class Asinh(_Function):
    """The inverse of the hyperbolic sine."""

    name = "asinh"
    function = staticmethod(np.arcsinh)

    def write(self, b: Builder, x: Value) -> Value:
        size, one = b(Abs(), x), _number(b, x, 1)
        # From here on size^2 + 1 is size^2, which might overflow.
        huge = b(Greater(), size, _number(b, x, _HUGE))
        safe = b(Where(), huge, one, size)
        square = b(Mul(), safe, safe)
        root = b(Add(), one, b(Sqrt(), b(Add(), one, square)))
        exact = b(Log1p(), b(Add(), safe, b(Div(), square, root)))
        rough = b(Add(), b(Log(), b(Where(), huge, size, one)), _number(b, x, math.log(2)))
        return b(Mul(), b(Sign(), x), b(Where(), huge, rough, exact))


@op
class Acosh(_Function):
    """The inverse of the hyperbolic cosine, 0 or more; NaN below 1."""

    name = "acosh"
    domain = (1.0, 4.0)
    function = staticmethod(np.arccosh)

    def write(self, b: Builder, x: Value) -> Value:
        """``log1p(t + sqrt(t (t + 2)))`` with ``t = x - 1``; two roots cannot overflow."""
        t = b(Sub(), x, _number(b, x, 1))
        root = b(Mul(), b(Sqrt(), t), b(Sqrt(), b(Add(), t, _number(b, x, 2))))
        return b(Log1p(), b(Add(), t, root))


@op
class Atanh(_Function):
    """The inverse of the hyperbolic tangent; NaN beyond -1 and 1."""

    name = "atanh"
    domain = (-0.9, 0.9)
    function = staticmethod(np.arctanh)

    def write(self, b: Builder, x: Value) -> Value:
        size, one = b(Abs(), x), _number(b, x, 1)
        ratio = b(Div(), b(Add(), size, size), b(Sub(), one, size))
        half = b(Mul(), b(Log1p(), ratio), _number(b, x, 0.5))
        return b(Mul(), b(Sign(), x), half)


_HALVINGS = 3
_TERMS = 9
"""Three halvings leave at most tan(pi/32) = 0.0985, for which nine terms are exact to 1e-19."""
_HUGE = 2.0**30


def _odd_series(b: Builder, t: Value) -> Value:
    """``t - t^3/3 + t^5/5 - ..``, by Horner's rule."""
    square = b(Mul(), t, t)
    total = _number(b, t, 0)
    for n in reversed(range(_TERMS)):
        term = _number(b, t, (-1) ** n / (2 * n + 1))
        total = b(Add(), term, b(Mul(), total, square))
    return b(Mul(), t, total)


def _number(b: Builder, like: Value, value: float) -> Value:
    return constant(b, float(value), like.type.dtype)


OPS: tuple[type[OpDef], ...] = (
    Expm1,
    Log1p,
    Tan,
    Sinh,
    Cosh,
    Atan,
    Asin,
    Acos,
    Asinh,
    Acosh,
    Atanh,
)
