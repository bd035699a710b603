"""Comparison, logic and choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.ops.arithmetic import Binary
from seqmix_ir.ops.rules import NUMBERS, broadcast_shapes, expect_dtype, same_dtype
from seqmix_ir.types import TensorType

__all__ = [
    "OPS",
    "And",
    "Equal",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "NotEqual",
    "Or",
    "Where",
]

_BOOL = frozenset({"bool"})


class _Comparison(Binary):
    """Two operands of one dtype, a bool result."""

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        (type,) = super().infer(x, y)
        return (type.with_dtype("bool"),)


@op
class Equal(_Comparison):
    """``x == y``."""

    name = "equal"
    accepts = NUMBERS | _BOOL
    function = staticmethod(np.equal)


@op
class NotEqual(_Comparison):
    """``x != y``; the exclusive or of bools."""

    name = "not_equal"
    accepts = NUMBERS | _BOOL
    function = staticmethod(np.not_equal)


@op
class Less(_Comparison):
    """``x < y``."""

    name = "less"
    function = staticmethod(np.less)


@op
class LessEqual(_Comparison):
    """``x <= y``."""

    name = "less_equal"
    function = staticmethod(np.less_equal)


@op
class Greater(_Comparison):
    """``x > y``."""

    name = "greater"
    function = staticmethod(np.greater)


@op
class GreaterEqual(_Comparison):
    """``x >= y``."""

    name = "greater_equal"
    function = staticmethod(np.greater_equal)


@op
class And(Binary):
    """True where both are."""

    name = "and"
    accepts = _BOOL
    function = staticmethod(np.logical_and)


@op
class Or(Binary):
    """True where either is."""

    name = "or"
    accepts = _BOOL
    function = staticmethod(np.logical_or)


@op
class Where(OpDef):
    """``x`` where ``condition`` holds, else ``y``; all three broadcast."""

    name = "where"
    operands = ("condition", "x", "y")
    results = ("z",)

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("condition", condition, _BOOL)
        same_dtype(x=x, y=y)
        return (x.with_shape(broadcast_shapes(condition=condition, x=x, y=y)),)

    def evaluate(self, run: Run, condition: Array, x: Array, y: Array) -> tuple[Array, ...]:
        return (np.where(condition, x, y),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        condition = rng.random((5, 1)) < 0.5
        x, y = rng.standard_normal((2, 1, 3)), np.array(-1.5)
        return [
            Example(cls(), (condition, x, y)),
            Example(cls(), (condition, np.arange(5)[:, None], np.arange(3))),
        ]


OPS: tuple[type[OpDef], ...] = (
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
    Where,
)
