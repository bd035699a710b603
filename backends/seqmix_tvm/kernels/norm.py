"""Kernels that go over a row more than once: softmax and the normalisations."""

from __future__ import annotations

import math
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.reduction import accumulated, fold_row
from seqmix_tvm.place import COMPUTED, Index, present
from seqmix_tvm.rules.layout import number

__all__ = ["layer_norm", "rms_norm", "softmax"]


class _Row:
    """One row of an operand along an axis."""

    def __init__(self, kernel: Kernel, x: Value, axis: int, at: dict[int, Any], dtype: str) -> None:
        self.kernel, self.x, self.axis, self.at, self.dtype = kernel, x, axis, at, dtype

    @property
    def length(self) -> Size:
        return self.x.type.shape[self.axis]

    def index(self, j: Any) -> Index:
        shape = self.x.type.shape
        full = {**self.at, self.axis: j}
        return self.kernel.frame.index(shape, tuple(full[a] for a in range(len(shape))))

    def element(self, j: Any) -> Any:
        return tvm.cast(self.dtype, self.kernel.frame.at(self.x, self.index(j)))

    def sum_of(self, element: Any) -> Any:
        zero = number(0, self.dtype)
        return fold_row(self.kernel, self.length, element, zero, lambda x, y: x + y, self.dtype)

    def top(self) -> Any:
        lowest = number(-math.inf, self.dtype)
        return fold_row(self.kernel, self.length, self.element, lowest, f.larger, self.dtype)

    def store(self, result: Value, element: Any) -> None:
        """Pass ``element(j)`` of the result on, for every j."""
        with self.kernel.along(self.length) as j:
            value = tvm.cast(COMPUTED[result.type.dtype], element(j))
            self.kernel.sink(self.index(j), value)


def _over_rows(kernel: Kernel, op: Op, axis: int, body: Any) -> None:
    x = present(op.operands[0])
    shape, held = x.type.shape, kernel.held(x)
    loops = [a for a in range(len(shape)) if a != axis and a not in held]
    dtype = accumulated(op, x)

    def row(counters: tuple[Any, ...]) -> None:
        body(_Row(kernel, x, axis, {**held, **dict(zip(loops, counters, strict=True))}, dtype))

    kernel.team_rows(tuple(shape[a] for a in loops), row, kernel.cost + 4, shape[axis])


def softmax(kernel: Kernel, op: Op) -> None:
    """``softmax``: the largest, the sum, the quotients; exponentials are taken twice."""
    axis = normal_axis(op.defn.attributes()["axis"], present(op.operands[0]).type.rank)

    def body(row: _Row) -> None:
        top = row.top()
        total = row.sum_of(lambda j: f.exp(row.element(j) - top))
        scale = kernel.writer.bind(number(1, row.dtype) / total, "scale")
        row.store(op.results[0], lambda j: f.exp(row.element(j) - top) * scale)

    _over_rows(kernel, op, axis, body)


def rms_norm(kernel: Kernel, op: Op) -> None:
    """``rms_norm``: the sum of squares, then the products."""
    weight = op.operands[1]

    def body(row: _Row) -> None:
        total = row.sum_of(lambda j: _square(kernel, row.element(j)))
        scale = _inverse_root(row, total, op)
        row.store(op.results[0], lambda j: _affine(row, row.element(j) * scale, j, weight, None))

    _over_rows(kernel, op, op.results[0].type.rank - 1, body)


def layer_norm(kernel: Kernel, op: Op) -> None:
    """``layer_norm``: the mean, the sum of squares around it, then the products."""
    weight, bias = op.operands[1:]

    def body(row: _Row) -> None:
        count = f.from_integer(row.dtype, kernel.sizes(row.length))
        mean = kernel.writer.bind(row.sum_of(row.element) / count, "mean")
        total = row.sum_of(lambda j: _square(kernel, row.element(j) - mean))
        scale = _inverse_root(row, total, op)
        row.store(
            op.results[0],
            lambda j: _affine(row, (row.element(j) - mean) * scale, j, weight, bias),
        )

    _over_rows(kernel, op, op.results[0].type.rank - 1, body)


def _square(kernel: Kernel, x: Any) -> Any:
    x = kernel.writer.bind(x)
    return x * x


def _inverse_root(row: _Row, total: Any, op: Op) -> Any:
    """``1 / sqrt(mean + eps)``."""
    count = f.from_integer(row.dtype, row.kernel.sizes(row.length))
    eps = number(op.defn.attributes()["eps"], row.dtype)
    root = tvm.call("sqrt", total / count + eps)
    return row.kernel.writer.bind(number(1, row.dtype) / root, "scale")


def _affine(row: _Row, y: Any, j: Any, weight: Value | None, bias: Value | None) -> Any:
    def given(value: Value) -> Any:
        index = row.kernel.frame.index(value.type.shape, (j,))
        return tvm.cast(row.dtype, row.kernel.frame.at(value, index))

    y = y if weight is None else y * given(weight)
    return y if bias is None else y + given(bias)
