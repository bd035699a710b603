"""Values that come from no operand: weights, literals, sizes and index ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.literals import Literal, check_literal, literal_of, literal_shape
from seqmix_ir.ops.precision import narrow
from seqmix_ir.ops.rules import NUMBERS
from seqmix_ir.types import DType, TensorType, check_dtype

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Value

__all__ = ["OPS", "Constant", "Iota", "SizeOf", "Weight", "constant", "size_value"]


def constant(b: Builder, value: Literal | Any, dtype: DType) -> Value:
    """Emit a constant; ``value`` is a Python scalar, nested tuples, or a small numpy array."""
    return b(Constant(literal_of(value, dtype), dtype))


def size_value(b: Builder, size: Size, dtype: DType) -> Value:
    """Emit ``size`` as a scalar of ``dtype``: a constant where it is a number."""
    if isinstance(size, int):
        return constant(b, size, dtype)
    return narrow(b, b(SizeOf(size)), dtype)


@op
class Weight(OpDef):
    """The weight called ``key``, which lives outside the module."""

    name = "weight"
    operands = ()
    results = ("y",)
    key: str
    type: TensorType

    def infer(self) -> tuple[TensorType, ...]:
        if not self.key:
            raise IRError("a weight needs a key; it is empty")
        return (self.type,)

    def evaluate(self, run: Run) -> tuple[Array, ...]:
        return (run.weight(self.key),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls("layer.weight", TensorType("f32", (3, 5))), ())]


@op
class Constant(OpDef):
    """A scalar or a small array; the nesting of ``value`` is its shape."""

    name = "constant"
    operands = ()
    results = ("y",)
    value: Literal
    dtype: str

    def infer(self) -> tuple[TensorType, ...]:
        dtype = check_dtype(self.dtype)
        check_literal(self.value, dtype)
        return (TensorType(dtype, literal_shape(self.value)),)

    def evaluate(self, run: Run) -> tuple[Array, ...]:
        return (np.array(self.value, run.dtype(check_dtype(self.dtype))),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        rows: Literal = ((1.5, 2.0, -0.25), (0.0, 1e4, 3.0))
        return [
            Example(cls(rows, "f32"), ()),
            Example(cls(7, "i64"), ()),
            Example(cls(True, "bool"), ()),
        ]


@op
class SizeOf(OpDef):
    """A size as an i64 scalar."""

    name = "size"
    operands = ()
    results = ("y",)
    value: Size

    def infer(self) -> tuple[TensorType, ...]:
        return (TensorType("i64", ()),)

    def evaluate(self, run: Run) -> tuple[Array, ...]:
        return (np.array(run.size(self.value), np.int64),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls(5), ())]


@op
class Iota(OpDef):
    """``[0, 1, ..., length - 1]``."""

    name = "iota"
    operands = ()
    results = ("y",)
    length: Size
    dtype: str = "i64"

    def infer(self) -> tuple[TensorType, ...]:
        dtype = check_dtype(self.dtype)
        if dtype not in NUMBERS:
            raise IRError(f"iota counts in numbers, not in {dtype}")
        if isinstance(self.length, int) and self.length < 0:
            raise IRError(f"iota has length {self.length}, expected 0 or more")
        return (TensorType(dtype, (self.length,)),)

    def evaluate(self, run: Run) -> tuple[Array, ...]:
        return (np.arange(run.size(self.length)).astype(run.dtype(check_dtype(self.dtype))),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls(5), ()), Example(cls(3, "f32"), ())]


OPS: tuple[type[OpDef], ...] = (Weight, Constant, SizeOf, Iota)
