"""Functions of one element each: mathematics, rounding, and negation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.ops.rules import SIGNED, expect_dtype
from seqmix_ir.types import FLOATS, TensorType

__all__ = [
    "OPS",
    "Abs",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "Log",
    "Neg",
    "Not",
    "Reciprocal",
    "Round",
    "Sign",
    "Sin",
    "Sqrt",
    "Tanh",
    "Unary",
    "erf",
]


def erf(x: Array) -> Array:
    """The error function; numpy has none, and this is a definition, so exactness goes first."""
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return flat.reshape(x.shape).astype(x.dtype)


class Unary(OpDef):
    """One operand, one result of the same type; ``function`` is the numpy meaning."""

    operands = ("x",)
    results = ("y",)
    accepts: ClassVar[frozenset[str]] = FLOATS
    positive: ClassVar[bool] = False
    """Whether the function is meant for numbers above 0; the default examples keep to them."""
    function: ClassVar[Callable[..., Any]]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, self.accepts)
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (self.function(x),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        shape = (2, 3, 5)
        made: list[Array] = []
        if "f32" in cls.accepts:
            floats = rng.standard_normal(shape)
            made.append(np.abs(floats) + 0.25 if cls.positive else floats)
            made.append(np.array(0.75))
        if "i64" in cls.accepts:
            made.append(rng.integers(-4, 5, shape))
        if "bool" in cls.accepts:
            made.append(rng.random(shape) < 0.5)
        return [Example(cls(), (x,)) for x in made]


@op
class Neg(Unary):
    """``-x``."""

    name = "neg"
    accepts = SIGNED
    function = staticmethod(np.negative)


@op
class Abs(Unary):
    """The absolute value."""

    name = "abs"
    accepts = SIGNED
    function = staticmethod(np.abs)


@op
class Sign(Unary):
    """-1, 0 or 1."""

    name = "sign"
    accepts = SIGNED
    function = staticmethod(np.sign)


@op
class Exp(Unary):
    """``e ** x``."""

    name = "exp"
    function = staticmethod(np.exp)


@op
class Log(Unary):
    """The natural logarithm; NaN below 0."""

    name = "log"
    positive = True
    function = staticmethod(np.log)


@op
class Sqrt(Unary):
    """The square root; NaN below 0."""

    name = "sqrt"
    positive = True
    function = staticmethod(np.sqrt)


@op
class Reciprocal(Unary):
    """``1 / x``."""

    name = "reciprocal"
    positive = True
    function = staticmethod(np.reciprocal)


@op
class Sin(Unary):
    """The sine, in radians."""

    name = "sin"
    function = staticmethod(np.sin)


@op
class Cos(Unary):
    """The cosine, in radians."""

    name = "cos"
    function = staticmethod(np.cos)


@op
class Tanh(Unary):
    """The hyperbolic tangent."""

    name = "tanh"
    function = staticmethod(np.tanh)


@op
class Erf(Unary):
    """The Gauss error function."""

    name = "erf"
    function = staticmethod(erf)


@op
class Floor(Unary):
    """The largest whole number that is not above."""

    name = "floor"
    function = staticmethod(np.floor)


@op
class Ceil(Unary):
    """The smallest whole number that is not below."""

    name = "ceil"
    function = staticmethod(np.ceil)


@op
class Round(Unary):
    """The nearest whole number; halves go to the even one."""

    name = "round"
    function = staticmethod(np.rint)


@op
class Not(Unary):
    """Logical negation."""

    name = "not"
    accepts = frozenset({"bool"})
    function = staticmethod(np.logical_not)


OPS: tuple[type[OpDef], ...] = (
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Sqrt,
    Reciprocal,
    Sin,
    Cos,
    Tanh,
    Erf,
    Floor,
    Ceil,
    Round,
    Not,
)
