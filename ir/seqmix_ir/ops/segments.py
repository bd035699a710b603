"""Pieces of tensors along one axis: put together, cut out, widened by a margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.dims import Size, ceildiv
from seqmix_ir.errors import IRError
from seqmix_ir.ops.rules import expect_dtype, normal_axis, same_dtype
from seqmix_ir.types import DTYPES, FLOATS, TensorType

__all__ = ["OPS", "Concat", "Pad", "Slice"]


@op
class Concat(OpDef):
    """The operands one after another along ``axis``; all other axes agree."""

    name = "concat"
    operands = ("*xs",)
    results = ("y",)
    axis: int

    def infer(self, *xs: TensorType | None) -> tuple[TensorType, ...]:
        present = [x for x in xs if x is not None]
        if len(present) != len(xs) or not xs:
            raise IRError("concat needs at least one operand, and none of them absent")
        first = present[0]
        axis = normal_axis(self.axis, first.rank)
        total: Size = 0
        for i, x in enumerate(present):
            same_dtype(**{"0": first, str(i): x})
            self._check_others(axis, i, first, x)
            total = total + x.shape[axis]
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        xs = tuple(rng.standard_normal((2, n, 3)) for n in (3, 5, 1))
        return [Example(cls(-2), xs), Example(cls(1), (np.arange(3)[None], np.arange(2)[None]))]

    def _check_others(self, axis: int, i: int, first: TensorType, x: TensorType) -> None:
        if x.rank != first.rank:
            raise IRError(f"operand 0 is {first}, operand {i} is {x}: the ranks differ")
        for other, (want, found) in enumerate(zip(first.shape, x.shape, strict=True)):
            if other != axis and want != found:
                raise IRError(
                    f"operand 0 is {first}, operand {i} is {x}: axis {other} is {want} and {found} "
                    f"(concatenated along axis {axis})"
                )

    def evaluate(self, run: Run, *xs: Array) -> tuple[Array, ...]:
        return (np.concatenate(xs, self.axis),)


@op
class Slice(OpDef):
    """Elements ``start, start + step, ...`` below ``stop`` along ``axis``.

    ``0 <= start <= stop <= size`` must hold: nothing counts from the end, nothing is clamped.
    """

    name = "slice"
    operands = ("x",)
    results = ("y",)
    axis: int
    start: Size
    stop: Size
    step: int = 1

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        axis = normal_axis(self.axis, x.rank)
        if self.step < 1:
            raise IRError(f"slice steps by {self.step}, expected 1 or more")
        length = x.shape[axis]
        gaps = (self.start, self.stop - self.start, length - self.stop)
        if any(isinstance(gap, int) and gap < 0 for gap in gaps):
            raise IRError(
                f"slice {self.start}:{self.stop} does not lie within axis {axis} of {x}, "
                f"0 <= start <= stop <= {length}"
            )
        size = ceildiv(self.stop - self.start, self.step)
        return (x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        axis = normal_axis(self.axis, x.ndim)
        start, stop = run.size(self.start), run.size(self.stop)
        if not 0 <= start <= stop <= x.shape[axis]:
            raise IRError(
                f"slice {self.start}:{self.stop} is {start}:{stop} here, which does not lie "
                f"within axis {axis} of size {x.shape[axis]}"
            )
        where = (*[slice(None)] * axis, slice(start, stop, self.step))
        return (x[where],)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 8, 6))
        ways = ((1, 3, 8, 1), (-1, 1, 6, 2), (1, 0, 7, 3))
        return [Example(cls(*way), (x,)) for way in ways]


@op
class Pad(OpDef):
    """``before`` and ``after`` elements of ``value`` around ``x`` along ``axis``."""

    name = "pad"
    operands = ("x",)
    results = ("y",)
    axis: int
    before: Size
    after: Size
    value: float = 0.0

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, DTYPES)
        axis = normal_axis(self.axis, x.rank)
        if x.dtype not in FLOATS and not float(self.value).is_integer():
            raise IRError(f"pad value {self.value} is no {x.dtype}")
        for side in (self.before, self.after):
            if isinstance(side, int) and side < 0:
                raise IRError(f"pad adds {side} elements, expected 0 or more; use slice to cut")
        size = x.shape[axis] + self.before + self.after
        return (x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        axis = normal_axis(self.axis, x.ndim)
        margins = [(0, 0)] * x.ndim
        margins[axis] = (run.size(self.before), run.size(self.after))
        return (np.pad(x, margins, constant_values=x.dtype.type(self.value)),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 3))
        return [Example(cls(1, 3, 2, -1.5), (x,)), Example(cls(0, 0, 1, 1.0), (x > 0,))]


OPS: tuple[type[OpDef], ...] = (Concat, Slice, Pad)
