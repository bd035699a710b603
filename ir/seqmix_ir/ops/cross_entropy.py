"""What a model pays for the token that came: the loss of language models.

N places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Maximum, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Exp, Log
from seqmix_ir.ops.index import GatherElements
from seqmix_ir.ops.logic import GreaterEqual, Where
from seqmix_ir.ops.precision import accumulator, widen, wider_dtype
from seqmix_ir.ops.reduce import Reduce
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape
from seqmix_ir.ops.shape import Squeeze, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "CrossEntropy"]


@op
class CrossEntropy(OpDef):
    """``loss[n] = log(sum_v exp(logits[n, v])) - logits[n, targets[n]]`` in nats, stabilised.

    ``logits [N, V]``, ``targets [N]`` (i64) -> ``loss [N]`` in f32, f64 for f64. A negative target
    asks nothing: its loss is 0.
    """

    name = "cross_entropy"
    operands = ("logits", "targets")
    results = ("loss",)

    def infer(self, logits: TensorType, targets: TensorType) -> tuple[TensorType, ...]:
        expect_rank("logits", logits, 2, "[N, V]")
        expect_dtype("logits", logits, FLOATS)
        expect_dtype("targets", targets, ("i64",))
        expect_shape("targets", targets, logits.shape[:1], f"'logits' is {logits}")
        if logits.shape[1] == 0:
            raise IRError(f"'logits' is {logits}, expected a vocabulary of 1 or more")
        return (TensorType(wider_dtype(logits.dtype), logits.shape[:1]),)

    def evaluate(self, run: Run, logits: Array, targets: Array) -> tuple[Array, ...]:
        V = logits.shape[1]
        if targets.size and targets.max() >= V:
            raise IRError(f"target {targets.max()} is out of range for a vocabulary of {V}")
        wide = logits.astype(accumulator(run, logits), copy=False)
        top = wide.max(1, keepdims=True, initial=-np.inf)
        total = np.log(np.exp(wide - top).sum(1)) + top[:, 0]
        picked = np.take_along_axis(wide, np.maximum(targets, 0)[:, None], 1)[:, 0]
        return (np.where(targets >= 0, total - picked, total.dtype.type(0)),)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        targets = np.array([3, -1, 0, 10, 7])
        return (
            Example(cls(), (3 * rng.standard_normal((5, 11)), targets)),
            Example(cls(), (100 + rng.standard_normal((2, 1)), np.array([0, -100]))),
        )

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        logits, targets = op.values
        wide = widen(b, logits)
        top = b(Reduce("max", (1,), True), wide)
        total = b(Log(), b(Reduce("sum", (1,), True), b(Exp(), b(Sub(), wide, top))))
        zero = constant(b, 0, "i64")
        places = b(Unsqueeze((1,)), b(Maximum(), targets, zero))
        loss = b(Sub(), b(Add(), total, top), b(GatherElements(1), wide, places))
        none = constant(b, 0.0, wide.type.dtype)
        return (b(Where(), b(GreaterEqual(), targets, zero), b(Squeeze((1,)), loss), none),)


OPS: tuple[type[OpDef], ...] = (CrossEntropy,)
