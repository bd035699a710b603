"""Reductions over axes, and the two functions built on them: softmax and the running sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Div, Sub
from seqmix_ir.ops.cast import Cast
from seqmix_ir.ops.constants import Iota, constant, size_value
from seqmix_ir.ops.elementwise import Exp
from seqmix_ir.ops.logic import Less, LessEqual, Where
from seqmix_ir.ops.precision import accumulator, check_accumulate, narrow, widen
from seqmix_ir.ops.rules import NUMBERS, expect_dtype, normal_axes, normal_axis
from seqmix_ir.ops.shape import Transpose, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "ArgMax", "CumSum", "Place", "Reduce", "Softmax"]

_BOOL = frozenset({"bool"})
_ACCEPTS = {
    "sum": NUMBERS,
    "prod": NUMBERS,
    "max": NUMBERS,
    "min": NUMBERS,
    "mean": FLOATS,
    "any": _BOOL,
    "all": _BOOL,
}


@op
class Reduce(OpDef):
    """Sum, mean, product, extremum, any or all over ``axes``.

    Over no elements: 0, NaN, 1, the lowest or highest value, False, True.
    """

    name = "reduce"
    operands = ("x",)
    results = ("y",)
    kind: str
    axes: tuple[int, ...]
    keepdims: bool
    accumulate: str = "f32"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        if self.kind not in _ACCEPTS:
            raise IRError(f"reduce: kind is {self.kind!r}, expected one of {', '.join(_ACCEPTS)}")
        expect_dtype("x", x, _ACCEPTS[self.kind])
        if not self.axes:
            raise IRError(f"reduce over no axes of {x}; name at least one")
        gone = normal_axes(self.axes, x.rank)
        return (x.with_shape(_reduced(x.shape, gone, self.keepdims)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        axes = normal_axes(self.axes, x.ndim)
        more: dict[str, Any] = {}
        if self.kind in ("sum", "prod", "mean"):
            more["dtype"] = accumulator(run, x, self.accumulate)
        if self.kind in ("max", "min"):
            more["initial"] = _extreme(x.dtype, highest=self.kind == "min")
        if self.kind == "mean" and not x.size:
            # numpy warns about the mean of nothing; NaN is the meaning.
            return (np.full(_reduced(x.shape, axes, self.keepdims), np.nan, x.dtype),)
        function: Callable[..., Any] = getattr(np, self.kind)
        return (np.asarray(function(x, axis=axes, keepdims=self.keepdims, **more)),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, whole = rng.standard_normal((2, 5, 6)), rng.integers(-4, 5, (2, 5))
        kinds = ("sum", "max", "min", "mean", "prod")
        return [
            *(Example(cls(kind, (-1, 0), False), (x,)) for kind in kinds),
            *(Example(cls(kind, (1,), True), (x,)) for kind in kinds),
            *(Example(cls(kind, (1,), False), (whole > -2,)) for kind in ("any", "all")),
            Example(cls("sum", (0,), False), (whole,)),
        ]

    def decompositions(self) -> Mapping[str, Decomposition]:
        if self.kind == "mean":
            return {"sum": self._mean}
        return {"integer": self._bool} if self.kind in ("any", "all") else {}

    def _mean(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        count: Size = 1
        for axis in normal_axes(self.axes, x.type.rank):
            count = count * x.type.shape[axis]
        wide = widen(b, x, self.accumulate)
        total = b(Reduce("sum", self.axes, self.keepdims, self.accumulate), wide)
        mean = b(Div(), total, size_value(b, count, total.type.dtype))
        return (narrow(b, mean, x.type.dtype),)

    def _bool(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        kind = "max" if self.kind == "any" else "min"
        y = b(Reduce(kind, self.axes, self.keepdims), b(Cast("i32"), x))
        return (b(Less(), constant(b, 0, "i32"), y),)


class Place(OpDef):
    """What ``argmax`` and ``argmin`` share: numpy has a function of each name."""

    operands = ("x",)
    results = ("y",)
    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, NUMBERS)
        axis = normal_axis(self.axis, x.rank)
        return (TensorType("i64", _reduced(x.shape, (axis,), self.keepdims)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        if not x.shape[self.axis]:
            raise IRError(
                f"{self.name} along axis {self.axis} of shape {x.shape}: nothing to choose"
            )
        function: Callable[..., Any] = getattr(np, self.name)
        return (np.asarray(function(x, self.axis, keepdims=self.keepdims)),)


@op
class ArgMax(Place):
    """The index of the first largest element along ``axis``."""

    name = "argmax"
    axis: int
    keepdims: bool

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 5, 6))
        # Of equal ones the first is meant.
        return [Example(cls(-1, False), (x,)), Example(cls(1, True), (np.round(x),))]


@op
class Softmax(OpDef):
    """``exp(x) / sum(exp(x))`` along ``axis``, stabilised; NaN where all of ``x`` is -inf."""

    name = "softmax"
    operands = ("x",)
    results = ("y",)
    axis: int
    accumulate: str = "f32"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        expect_dtype("x", x, FLOATS)
        normal_axis(self.axis, x.rank)
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        wide = x.astype(accumulator(run, x, self.accumulate), copy=False)
        top = wide.max(self.axis, keepdims=True, initial=-np.inf)
        e = np.exp(wide - top)
        return (e / e.sum(self.axis, keepdims=True),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = 3 * rng.standard_normal((2, 5, 6))
        return [Example(cls(-1), (x,)), Example(cls(1), (x,)), Example(cls(-1, "f64"), (x,))]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        wide, axes = widen(b, x, self.accumulate), (normal_axis(self.axis, x.type.rank),)
        top = b(Reduce("max", axes, True, self.accumulate), wide)
        e = b(Exp(), b(Sub(), wide, top))
        total = b(Reduce("sum", axes, True, self.accumulate), e)
        return (narrow(b, b(Div(), e, total), x.type.dtype),)


@op
class CumSum(OpDef):
    """The running sum along ``axis``: without the element itself, or from the end."""

    name = "cumsum"
    operands = ("x",)
    results = ("y",)
    axis: int
    exclusive: bool = False
    reverse: bool = False
    accumulate: str = "f32"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        expect_dtype("x", x, NUMBERS)
        normal_axis(self.axis, x.rank)
        return (x,)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        kept = np.flip(x, self.axis) if self.reverse else x
        y = np.cumsum(kept, self.axis, dtype=accumulator(run, x, self.accumulate))
        if self.exclusive:
            y = np.roll(y, 1, self.axis)
            np.moveaxis(y, self.axis, 0)[:1] = 0
        return (np.flip(y, self.axis) if self.reverse else y,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x, whole = rng.standard_normal((2, 5, 3)), rng.integers(-4, 5, (2, 5))
        ways = [(exclusive, reverse) for exclusive in (False, True) for reverse in (False, True)]
        return [*(Example(cls(1, *way), (x,)) for way in ways), Example(cls(-1), (whole,))]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"triangular": self._triangular}

    def _triangular(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """The sum of what a triangular mask keeps: quadratic in the axis, but safe with inf."""
        (x,) = op.values
        rank, axis = x.type.rank, normal_axis(self.axis, x.type.rank)
        last = (*(i for i in range(rank) if i != axis), axis)
        back = tuple(last.index(i) for i in range(rank))
        places = b(Iota(x.type.shape[axis]))
        rows, columns = b(Unsqueeze((1,)), places), b(Unsqueeze((0,)), places)
        before, after = (rows, columns) if self.reverse else (columns, rows)
        seen = b(Less() if self.exclusive else LessEqual(), before, after)
        wide = widen(b, b(Unsqueeze((rank - 1,)), b(Transpose(last), x)), self.accumulate)
        kept = b(Where(), seen, wide, constant(b, 0, wide.type.dtype))
        total = b(Reduce("sum", (rank,), False, self.accumulate), kept)
        return (b(Transpose(back), narrow(b, total, x.type.dtype)),)


def _reduced(shape: tuple[Any, ...], gone: tuple[int, ...], keepdims: bool) -> tuple[Any, ...]:
    if keepdims:
        return tuple(1 if i in gone else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def _extreme(dtype: np.dtype[Any], highest: bool) -> Any:
    if dtype.kind == "f":
        return np.inf if highest else -np.inf
    info = np.iinfo(dtype)
    return info.max if highest else info.min


OPS: tuple[type[OpDef], ...] = (Reduce, ArgMax, Softmax, CumSum)
