"""An identity that matters to training only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.rules import expect_dtype
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "ClipGradient"]


@op
class ClipGradient(OpDef):
    """``x``; the gradient that flows back through it is clipped to ``[-limit, limit]``."""

    name = "clip_gradient"
    operands = ("x",)
    results = ("y",)
    limit: float

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, FLOATS)
        if not self.limit > 0:
            raise IRError(f"limit is {self.limit}, expected a number above 0")
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (x,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls(10.0), (rng.standard_normal((2, 5)),))]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"identity": _identity}


def _identity(b: Builder, op: Op) -> tuple[Value, ...]:
    """The operand itself: a graph runs forward only."""
    return op.values


OPS: tuple[type[OpDef], ...] = (ClipGradient,)
