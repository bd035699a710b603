"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add
from seqmix_ir.ops.precision import accumulator, check_accumulate, narrow, widen
from seqmix_ir.ops.rules import (
    NUMBERS,
    broadcast_shapes,
    expect_dtype,
    expect_rank,
    expect_shape,
    same_dtype,
)
from seqmix_ir.ops.shape import Transpose
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Linear", "Matmul"]


@op
class Matmul(OpDef):
    """``[.., M, K] @ [.., K, N] -> [.., M, N]``; leading axes broadcast."""

    name = "matmul"
    operands = ("x", "y")
    results = ("z",)
    accumulate: str = "f32"

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        same_dtype(x=x, y=y)
        expect_dtype("x", x, NUMBERS)
        for name, type in (("x", x), ("y", y)):
            if type.rank < 2:
                raise IRError(f"operand '{name}' is {type}, expected two axes or more; unsqueeze")
        if x.shape[-1] != y.shape[-2]:
            raise IRError(
                f"inner sizes differ: the last axis of 'x' ({x}) is {x.shape[-1]}, "
                f"the last but one of 'y' ({y}) is {y.shape[-2]}"
            )
        lead = broadcast_shapes(x=x.with_shape(x.shape[:-2]), y=y.with_shape(y.shape[:-2]))
        return (x.with_shape((*lead, x.shape[-2], y.shape[-1])),)

    def evaluate(self, run: Run, x: Array, y: Array) -> tuple[Array, ...]:
        wide = accumulator(run, x, self.accumulate)
        return (np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False)),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, y = rng.standard_normal((2, 1, 5, 4)), rng.standard_normal((3, 4, 2))
        return [Example(cls(), (x, y)), Example(cls("f64"), (x[0, 0], y[0]))]


@op
class Linear(OpDef):
    """``x [.., K] @ weight [N, K].T + bias [N]``, rounded once."""

    name = "linear"
    operands = ("x", "weight", "bias?")
    results = ("y",)
    accumulate: str = "f32"

    def infer(
        self, x: TensorType, weight: TensorType, bias: TensorType | None
    ) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        same_dtype(x=x, weight=weight, bias=bias)
        expect_dtype("x", x, FLOATS)
        expect_rank("weight", weight, 2, "[N, K]")
        if x.rank == 0:
            raise IRError(f"operand 'x' is {x}, expected [.., K]")
        N, K = weight.shape
        if x.shape[-1] != K:
            raise IRError(
                f"the last axis of 'x' ({x}) is {x.shape[-1]}, 'weight' ({weight}) takes {K}"
            )
        if bias is not None:
            expect_shape("bias", bias, (N,), "the first axis of 'weight'")
        return (x.with_shape((*x.shape[:-1], N)),)

    def evaluate(self, run: Run, x: Array, weight: Array, bias: Array | None) -> tuple[Array, ...]:
        wide = accumulator(run, x, self.accumulate)
        # One flat product: numpy would loop over the leading axes with small ones.
        rows = x.reshape(-1, x.shape[-1]) if x.size else x
        flat = rows.astype(wide, copy=False) @ weight.astype(wide, copy=False).T
        y = flat.reshape(*x.shape[:-1], weight.shape[0])
        return (y if bias is None else y + bias,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, weight, bias = (rng.standard_normal(s) for s in ((2, 3, 4), (5, 4), (5,)))
        return [
            Example(cls(), (x, weight, None)),
            Example(cls(), (x, weight, bias)),
            Example(cls("f64"), (x[0], weight, bias)),
        ]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"matmul": self._matmul}

    def _matmul(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """A matmul with the transposed weight; ``x`` of rank 1 is a matrix of one row."""
        x, weight, bias = op.operands
        if x is None or weight is None:
            raise IRError(f"{op.loc}: 'linear' lacks its operands")
        if x.type.rank < 2:
            raise IRError(f"{op.loc}: 'linear' of {x.type} has no matmul form; unsqueeze 'x'")
        if bias is None:
            return (b(Matmul(self.accumulate), x, b(Transpose((1, 0)), weight)),)
        wide = [widen(b, v, self.accumulate) for v in (x, weight, bias)]
        y = b(Matmul(self.accumulate), wide[0], b(Transpose((1, 0)), wide[1]))
        return (narrow(b, b(Add(), y, wide[2]), x.type.dtype),)


OPS: tuple[type[OpDef], ...] = (Matmul, Linear)
