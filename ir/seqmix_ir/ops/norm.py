"""Normalisations over the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Mul, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Reciprocal, Sqrt
from seqmix_ir.ops.precision import accumulator, check_accumulate, narrow, widen, wider_dtype
from seqmix_ir.ops.reduce import Reduce
from seqmix_ir.ops.rules import expect_dtype, expect_shape
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "LayerNorm", "RmsNorm"]


@op
class RmsNorm(OpDef):
    """``x / sqrt(mean(x^2) + eps) * weight [D]`` over the last axis, rounded once."""

    name = "rms_norm"
    operands = ("x", "weight?")
    results = ("y",)
    eps: float
    accumulate: str = "f32"

    def infer(self, x: TensorType, weight: TensorType | None) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        _check_affine(x, self.accumulate, weight=weight)
        return (x,)

    def evaluate(self, run: Run, x: Array, weight: Array | None) -> tuple[Array, ...]:
        wide = x.astype(accumulator(run, x, self.accumulate), copy=False)
        y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (y if weight is None else y * weight,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, weight = rng.standard_normal((2, 3, 5)), rng.standard_normal(5)
        plain = Example(cls(1e-5), (x, None))
        return [plain, Example(cls(1e-5), (x, weight)), Example(cls(1e-5, "f64"), (x, weight))]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x, weight = op.operands
        if x is None:
            raise IRError(f"{op.loc}: 'rms_norm' lacks 'x'")
        wide = widen(b, x, self.accumulate)
        y = _scale_to_unit(b, wide, self.eps, self.accumulate)
        y = y if weight is None else b(Mul(), y, narrow(b, weight, wide.type.dtype))
        return (narrow(b, y, x.type.dtype),)


@op
class LayerNorm(OpDef):
    """``(x - mean) / sqrt(variance + eps) * weight [D] + bias [D]`` over the last axis."""

    name = "layer_norm"
    operands = ("x", "weight?", "bias?")
    results = ("y",)
    eps: float
    accumulate: str = "f32"

    def infer(
        self, x: TensorType, weight: TensorType | None, bias: TensorType | None
    ) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        _check_affine(x, self.accumulate, weight=weight, bias=bias)
        return (x,)

    def evaluate(
        self, run: Run, x: Array, weight: Array | None, bias: Array | None
    ) -> tuple[Array, ...]:
        wide = x.astype(accumulator(run, x, self.accumulate), copy=False)
        centred = wide - np.mean(wide, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        y = centred / np.sqrt(variance + self.eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, weight, bias = (rng.standard_normal(s) for s in ((2, 3, 5), 5, 5))
        given = [(None, None), (weight, None), (weight, bias)]
        return [Example(cls(1e-5), (x, *parameters)) for parameters in given]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x, weight, bias = op.operands
        if x is None:
            raise IRError(f"{op.loc}: 'layer_norm' lacks 'x'")
        wide = widen(b, x, self.accumulate)
        dtype = wide.type.dtype
        centred = b(Sub(), wide, b(Reduce("mean", (-1,), True, self.accumulate), wide))
        y = _scale_to_unit(b, centred, self.eps, self.accumulate)
        y = y if weight is None else b(Mul(), y, narrow(b, weight, dtype))
        y = y if bias is None else b(Add(), y, narrow(b, bias, dtype))
        return (narrow(b, y, x.type.dtype),)


def _scale_to_unit(b: Builder, x: Value, eps: float, accumulate: str) -> Value:
    """``x / sqrt(mean(x^2) + eps)``."""
    square = b(Reduce("mean", (-1,), True, accumulate), b(Mul(), x, x))
    root = b(Sqrt(), b(Add(), square, constant(b, eps, x.type.dtype)))
    return b(Mul(), x, b(Reciprocal(), root))


def _check_affine(x: TensorType, accumulate: str, **parameters: TensorType | None) -> None:
    expect_dtype("x", x, FLOATS)
    if x.rank == 0:
        raise IRError(f"operand 'x' is {x}, expected [.., D]")
    for name, type in parameters.items():
        if type is None:
            continue
        expect_shape(name, type, x.shape[-1:], f"the last axis of 'x', {x}")
        # Mixed precision keeps the parameters of norms in the dtype that they are used in.
        expect_dtype(name, type, (x.dtype, wider_dtype(x.dtype, accumulate)))


OPS: tuple[type[OpDef], ...] = (RmsNorm, LayerNorm)
