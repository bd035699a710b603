"""The table of rules: by op class, how cotangents of results become cotangents of operands.

The rules are a table and no methods of the ops, because nearly every rule needs ops of families
that are defined on top of the op's own (a product's rule sums, a sum's rule expands).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import Expand, Reduce, Reshape, constant
from seqmix_ir.types import TensorType

__all__ = [
    "RULES",
    "Rule",
    "is_differentiable",
    "number",
    "reshaped",
    "rule",
    "sum_to",
    "zeros",
]

Rule: TypeAlias = "Callable[..., tuple[Value | None, ...]]"
"""``rule(b, op, *cotangents)``: one cotangent per operand, None where nothing flows.

``op`` stands on values that ``b`` may read; a result without a cotangent comes as None (never all
of them). An op of one float result always gets its cotangent.
"""

RULES: dict[type[OpDef], Rule] = {}
"""Op class to rule. Ops that only make integers or bools need none."""

R = TypeVar("R", bound="Callable[..., tuple[Value | None, ...]]")


def rule(*classes: type[OpDef]) -> Callable[[R], R]:
    """Decorator: the function is the rule of these op classes."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(classes, function))
        return function

    return register


def is_differentiable(defn: OpDef) -> bool:
    """Whether the op has a rule itself; otherwise it must decompose."""
    return type(defn) in RULES


def number(b: Builder, like: Value, value: float) -> Value:
    """A scalar of the dtype of ``like``."""
    return constant(b, value, like.type.dtype)


def zeros(b: Builder, type: TensorType) -> Value:
    """Zeros of a float type."""
    zero = constant(b, 0.0, type.dtype)
    return b(Expand(type.shape), zero) if type.rank else zero


def reshaped(b: Builder, x: Value, shape: tuple[Size, ...]) -> Value:
    """``x`` in another shape; ``x`` itself where it has it."""
    return x if x.type.shape == shape else b(Reshape(shape), x)


def sum_to(b: Builder, x: Value, shape: tuple[Size, ...]) -> Value:
    """``x`` summed over the axes along which ``shape`` was broadcast to it."""
    lead = x.type.rank - len(shape)
    axes = [
        *range(lead),
        *(lead + i for i, s in enumerate(shape) if s == 1 and x.type.shape[lead + i] != 1),
    ]
    if not axes:
        return x
    return reshaped(b, b(Reduce("sum", tuple(axes), False), x), shape)


def size_of(shape: tuple[Size, ...]) -> Size:
    """The number of elements."""
    return math.prod(shape)
