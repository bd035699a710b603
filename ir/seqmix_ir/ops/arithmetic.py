"""Functions of two elements, with numpy broadcasting; both operands have one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from seqmix_ir.defn import Array, OpDef, Run, op
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
    function: ClassVar[Callable[..., Any]]

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        same_dtype(x=x, y=y)
        expect_dtype("x", x, self.accepts)
        return (x.with_shape(broadcast_shapes(x=x, y=y)),)

    def evaluate(self, run: Run, x: Array, y: Array) -> tuple[Array, ...]:
        return (self.function(x, y),)


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
    accepts = FLOATS
    function = staticmethod(np.divide)


@op
class Pow(Binary):
    """``x ** y`` of floats."""

    name = "pow"
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
    function = staticmethod(np.mod)


@op
class FloorDiv(Binary):
    """``floor(x / y)``."""

    name = "floor_div"
    function = staticmethod(_floor_divide)


OPS: tuple[type[OpDef], ...] = (Add, Sub, Mul, Div, Pow, Maximum, Minimum, Mod, FloorDiv)
