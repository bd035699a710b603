"""The activation of minGRU's candidate as an op of the IR: types, meaning, simpler form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.ops import Add, GreaterEqual, Sigmoid, Where, constant
from seqmix_ir.ops.rules import expect_dtype
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["Positive"]


@op
class Positive(OpDef):
    """``g(x) = x + 1/2`` where ``x >= 0``, else ``sigmoid(x)`` (Feng et al. 2024, appendix B).

    It is positive, increasing and continuous, and grows without bound.
    """

    name = "mingru.positive"
    operands = ("x",)
    results = ("y",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, FLOATS)
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        below = np.minimum(x, 0)
        return (np.where(x >= 0, x + 0.5, 1 / (1 + np.exp(-below))).astype(x.dtype),)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": _direct}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        """Both branches, next to the seam between them, and where exp overflows in float32."""
        seam = np.array([-1e3, -1.0, -1e-3, 1e-3, 1.0, 1e3])
        return [Example(cls(), (rng.normal(size=(2, 7, 3)),)), Example(cls(), (seam,))]


def _direct(b: Builder, op: Op) -> tuple[Value, ...]:
    (x,) = op.values
    above = b(Add(), x, constant(b, 0.5, x.type.dtype))
    positive = b(GreaterEqual(), x, constant(b, 0.0, x.type.dtype))
    return (b(Where(), positive, above, b(Sigmoid(), x)),)
