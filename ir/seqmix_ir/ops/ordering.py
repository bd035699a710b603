"""The order of elements along an axis: the first ones of it, and the smallest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.cast import Cast
from seqmix_ir.ops.constants import Iota, constant
from seqmix_ir.ops.elementwise import Neg, Not
from seqmix_ir.ops.index import GatherElements, ScatterElements
from seqmix_ir.ops.logic import And, Greater, Less, NotEqual, Or
from seqmix_ir.ops.reduce import ArgMax, Place, Reduce
from seqmix_ir.ops.rules import NUMBERS, expect_dtype, normal_axis
from seqmix_ir.ops.segments import Slice
from seqmix_ir.ops.shape import Expand, Squeeze, Transpose, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "ArgMin", "TopK"]


@op
class TopK(OpDef):
    """The ``k`` largest (or smallest) elements along ``axis``, in order, and their indices (i64).

    Of equal elements the one with the lowest index comes first, so ``k`` = size is a stable sort.
    NaN counts as larger than everything; ONNX leaves its place open.
    """

    name = "top_k"
    operands = ("x",)
    results = ("values", "indices")
    k: Size
    axis: int = -1
    largest: bool = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, NUMBERS)
        axis = normal_axis(self.axis, x.rank)
        gaps = (self.k, x.shape[axis] - self.k)
        if any(isinstance(gap, int) and gap < 0 for gap in gaps):
            raise IRError(
                f"top_k takes {self.k} of the {x.shape[axis]} elements along axis {axis} of {x}"
            )
        values = x.with_shape((*x.shape[:axis], self.k, *x.shape[axis + 1 :]))
        return values, values.with_dtype("i64")

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        axis, k = normal_axis(self.axis, x.ndim), run.size(self.k)
        size = x.shape[axis]
        if not 0 <= k <= size:
            raise IRError(f"top_k takes {k} of the {size} elements along axis {axis}")
        if self.largest:
            # Backwards twice: a stable sort in rising order then puts low indices first.
            order = size - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        indices = order[(*[slice(None)] * axis, slice(k))].astype(np.int64)
        return np.take_along_axis(x, indices, axis), indices

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"counted": self._counted}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        ties = rng.integers(-2, 3, (3, 7)).astype(np.float64)
        return (
            Example(cls(3), (rng.standard_normal((2, 5)),)),
            Example(cls(5, 1, False), (rng.standard_normal((2, 5, 3)),)),
            Example(cls(4), (ties,)),
        )

    def _counted(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """An element's place is the number of those before it: quadratic in the axis."""
        (x,) = op.values
        rank, axis = x.type.rank, normal_axis(self.axis, x.type.rank)
        last = (*(i for i in range(rank) if i != axis), axis)
        back = tuple(last.index(i) for i in range(rank))
        x = b(Transpose(last), x)
        size, before = x.type.shape[-1], self._before(b, x)
        place = b(Reduce("sum", (rank,), False), b(Cast("i64"), before))
        numbers = b(Expand(x.type.shape), b(Iota(size)))
        blank = b(Expand(x.type.shape), constant(b, 0, "i64"))
        order = b(ScatterElements(rank - 1), blank, place, numbers)
        indices = b(Slice(rank - 1, 0, self.k), order)
        values = b(GatherElements(rank - 1), x, indices)
        return b(Transpose(back), values), b(Transpose(back), indices)

    def _before(self, b: Builder, x: Value) -> Value:
        """``[.., i, j]``: whether element ``j`` comes before element ``i``."""
        own, other = b(Unsqueeze((x.type.rank,)), x), b(Unsqueeze((x.type.rank - 1,)), x)
        above, below = _larger(b, other, own), _larger(b, own, other)
        places = b(Iota(x.type.shape[-1]))
        earlier = b(Less(), b(Unsqueeze((0,)), places), b(Unsqueeze((1,)), places))
        equal = b(Not(), b(Or(), above, below))
        return b(Or(), above if self.largest else below, b(And(), equal, earlier))


@op
class ArgMin(Place):
    """The index of the first smallest element along ``axis``; that of the first NaN if any."""

    name = "argmin"
    axis: int
    keepdims: bool

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        ties = rng.integers(0, 3, (3, 7)).astype(np.float64)
        return (
            Example(cls(1, True), (rng.standard_normal((2, 5, 3)),)),
            Example(cls(-1, False), (ties,)),
        )

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        if x.type.dtype in FLOATS:
            return (b(ArgMax(self.axis, self.keepdims), b(Neg(), x)),)
        # The smallest integer has no negative; a sort has none of that trouble.
        axis = normal_axis(self.axis, x.type.rank)
        _, first = b.emit(TopK(1, axis, False), x)
        return (first if self.keepdims else b(Squeeze((axis,)), first),)


def _larger(b: Builder, x: Value, y: Value) -> Value:
    """``x > y`` with NaN above everything."""
    larger = b(Greater(), x, y)
    if x.type.dtype not in FLOATS:
        return larger
    nan, other = b(NotEqual(), x, x), b(NotEqual(), y, y)
    return b(Or(), larger, b(And(), nan, b(Not(), other)))


OPS: tuple[type[OpDef], ...] = (TopK, ArgMin)
