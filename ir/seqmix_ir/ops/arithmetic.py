"""Functions of two elements, with numpy broadcasting; both operands have one dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.ops.rules import NUMBERS, broadcast_shapes, expect_dtype, same_dtype
from seqmix_ir.types import FLOATS, TensorType

__all__ = [
    "OPS",
    "Add",
    "Binary",
    "Div",
    "FloorDiv",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "Pow",
    "Sub",
]


class Binary(OpDef):
    """Two operands, one result of their dtype; ``function`` is the numpy meaning."""

    operands = ("x", "y")
    results = ("z",)
    accepts: ClassVar[frozenset[str]] = NUMBERS
    positive: ClassVar[bool] = False
    """Whether the function is meant for numbers above 0; the default examples keep to them."""
    function: ClassVar[Callable[..., Any]]

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        same_dtype(x=x, y=y)
        expect_dtype("x", x, self.accepts)
        return (x.with_shape(broadcast_shapes(x=x, y=y)),)

    def evaluate(self, run: Run, x: Array, y: Array) -> tuple[Array, ...]:
        return (self.function(x, y),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        # Halves are exact in every dtype, so that equal ones stay equal.
        left, right = (np.round(2 * rng.standard_normal(s)) / 2 for s in ((2, 1, 5), (3, 1)))
        if cls.positive:
            left, right = np.abs(left) + 0.25, np.abs(right) + 0.25
        made: list[tuple[Array, Array]] = []
        if "f32" in cls.accepts:
            made += [(left, right), (right, np.array(0.75))]
        if "i64" in cls.accepts:
            made.append((rng.integers(-4, 5, (2, 5)), rng.integers(1, 4, 5)))
        if "bool" in cls.accepts:
            made.append((rng.random((2, 5)) < 0.5, rng.random((2, 1)) < 0.5))
        return [Example(cls(), pair) for pair in made]


def _floor_divide(x: Array, y: Array) -> Array:
    divide: Array = np.floor(x / y) if x.dtype.kind == "f" else np.floor_divide(x, y)
    return divide


@op
class Add(Binary):
    """``x + y``."""

    name = "add"
    function = staticmethod(np.add)


@op
class Sub(Binary):
    """``x - y``."""

    name = "sub"
    function = staticmethod(np.subtract)


@op
class Mul(Binary):
    """``x * y``."""

    name = "mul"
    function = staticmethod(np.multiply)


@op
class Div(Binary):
    """``x / y`` of floats; integers have ``floor_div``."""

    name = "div"
    positive = True
    accepts = FLOATS
    function = staticmethod(np.divide)


@op
class Pow(Binary):
    """``x ** y`` of floats."""

    name = "pow"
    positive = True
    accepts = FLOATS
    function = staticmethod(np.power)


@op
class Maximum(Binary):
    """The larger one; NaN where either is."""

    name = "maximum"
    function = staticmethod(np.maximum)


@op
class Minimum(Binary):
    """The smaller one; NaN where either is."""

    name = "minimum"
    function = staticmethod(np.minimum)


@op
class Mod(Binary):
    """The remainder, with the sign of ``y``."""

    name = "mod"
    positive = True
    function = staticmethod(np.mod)


@op
class FloorDiv(Binary):
    """``floor(x / y)``."""

    name = "floor_div"
    positive = True
    function = staticmethod(_floor_divide)


OPS: tuple[type[OpDef], ...] = (Add, Sub, Mul, Div, Pow, Maximum, Minimum, Mod, FloorDiv)
