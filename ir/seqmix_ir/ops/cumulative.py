"""Running products, extrema and log-sum-exps along an axis; the running sum is in ``reduce``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqmix_ir.builder import trace_block
from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Maximum, Minimum, Mul, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Abs, Exp, Log
from seqmix_ir.ops.logic import Equal, Where
from seqmix_ir.ops.precision import accumulator, check_accumulate, narrow, widen
from seqmix_ir.ops.rules import NUMBERS, expect_dtype, normal_axis
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Expand
from seqmix_ir.types import FLOATS, DType, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "CumMax", "CumMin", "CumProd", "Cumulative", "LogCumSumExp"]


@dataclasses.dataclass(frozen=True)
class Cumulative(OpDef):
    """``y[t]`` combines ``x[0] .. x[t]``; without ``x[t]`` itself, or from the end, if so asked.

    Subclasses say how two elements are combined, and with which element nothing changes.
    """

    operands = ("x",)
    results = ("y",)
    accepts: ClassVar[frozenset[str]] = NUMBERS
    ufunc: ClassVar[Any]
    axis: int
    exclusive: bool = False
    reverse: bool = False
    accumulate: str = "f32"

    def neutral(self, dtype: DType) -> int | float:
        """What changes nothing: the result over no elements."""
        raise IRError(f"cumulative op '{self.name}' does not name its neutral element")

    def combine(self, b: Builder, x: Value, y: Value) -> Value:
        """The two together, in simpler ops."""
        raise IRError(f"cumulative op '{self.name}' does not say how it combines")

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        expect_dtype("x", x, self.accepts)
        normal_axis(self.axis, x.rank)
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        wide = x.astype(accumulator(run, x, self.accumulate), copy=False)
        y = np.moveaxis(np.flip(wide, self.axis) if self.reverse else wide, self.axis, 0)
        if y.shape[0]:
            y = self.ufunc.accumulate(y, axis=0, dtype=y.dtype)
        if self.exclusive:
            start = np.full_like(y[:1], self.neutral(_name(x)))
            y = np.concatenate((start, y[:-1]))
        y = np.moveaxis(y, 0, self.axis)
        return (np.flip(y, self.axis) if self.reverse else y,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"scan": self._scan}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 5, 3))
        ways = ((False, False), (True, False), (False, True), (True, True))
        return tuple(Example(cls(1, *way), (x,)) for way in ways)

    def _scan(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """One step per element, and one before them all: so there is a step even of nothing."""
        (x,) = op.values
        axis = normal_axis(self.axis, x.type.rank)
        wide, size = widen(b, x, self.accumulate), x.type.shape[axis]
        dtype, shape = wide.type.dtype, list(x.type.shape)
        none = constant(b, self.neutral(dtype), dtype)
        row = tuple(shape[:axis] + shape[axis + 1 :])
        edge = b(Expand((*shape[:axis], 1, *shape[axis + 1 :])), none)
        joined = b(Concat(axis), *((wide, edge) if self.reverse else (edge, wide)))
        body = trace_block([TensorType(dtype, row)] * 2, self._step, "y x")
        start = b(Expand(row), none)
        _, y = b.emit(Scan(1, 1, axis, self.reverse), start, joined, body=body)
        # The added step stands in front: with it the results are exclusive ones.
        first = int(self.exclusive == self.reverse)
        return (narrow(b, b(Slice(axis, first, size + first), y), x.type.dtype),)

    def _step(self, b: Builder, y: Value, x: Value) -> tuple[Value, ...]:
        new = self.combine(b, y, x)
        return new, new


@op
class CumProd(Cumulative):
    """The running product along ``axis``."""

    name = "cumprod"
    ufunc = np.multiply

    def neutral(self, dtype: DType) -> int | float:
        return 1

    def combine(self, b: Builder, x: Value, y: Value) -> Value:
        return b(Mul(), x, y)


@op
class CumMax(Cumulative):
    """The largest element so far along ``axis``; NaN from the first NaN on."""

    name = "cummax"
    ufunc = np.maximum

    def neutral(self, dtype: DType) -> int | float:
        return -np.inf if dtype in FLOATS else int(np.iinfo(_INTEGERS[dtype]).min)

    def combine(self, b: Builder, x: Value, y: Value) -> Value:
        return b(Maximum(), x, y)


@op
class CumMin(Cumulative):
    """The smallest element so far along ``axis``; NaN from the first NaN on."""

    name = "cummin"
    ufunc = np.minimum

    def neutral(self, dtype: DType) -> int | float:
        return np.inf if dtype in FLOATS else int(np.iinfo(_INTEGERS[dtype]).max)

    def combine(self, b: Builder, x: Value, y: Value) -> Value:
        return b(Minimum(), x, y)


@op
class LogCumSumExp(Cumulative):
    """``log(exp(x[0]) + .. + exp(x[t]))`` along ``axis``, stabilised; -inf of -inf alone."""

    name = "logcumsumexp"
    accepts = FLOATS
    ufunc = np.logaddexp

    def neutral(self, dtype: DType) -> int | float:
        return -np.inf

    def combine(self, b: Builder, x: Value, y: Value) -> Value:
        top = b(Maximum(), x, y)
        # An infinite top must not be subtracted from itself.
        endless = b(Equal(), b(Abs(), top), constant(b, np.inf, top.type.dtype))
        top = b(Where(), endless, constant(b, 0.0, top.type.dtype), top)
        total = b(Add(), b(Exp(), b(Sub(), x, top)), b(Exp(), b(Sub(), y, top)))
        return b(Add(), top, b(Log(), total))


_INTEGERS: Mapping[DType, type[np.integer[Any]]] = {
    "i64": np.int64,
    "i32": np.int32,
    "i8": np.int8,
    "u8": np.uint8,
}


def _name(x: Array) -> DType:
    """The dtype in the IR of an array that is evaluated."""
    if x.dtype.kind == "f":
        return "f32"
    return next(name for name, kind in _INTEGERS.items() if x.dtype == kind)


OPS: tuple[type[OpDef], ...] = (CumProd, CumMax, CumMin, LogCumSumExp)
