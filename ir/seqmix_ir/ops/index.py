"""Elements picked or replaced by index; semantics of the ONNX ops of these names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.rules import NUMBERS, expect_dtype, normal_axis, same_dtype
from seqmix_ir.types import TensorType

__all__ = ["OPS", "Gather", "GatherElements", "ScatterElements"]

_INDICES = ("i64", "i32")


@op
class Gather(OpDef):
    """``data[.., indices, ..]``: ``indices`` of any rank take the place of ``axis``."""

    name = "gather"
    operands = ("data", "indices")
    results = ("y",)
    axis: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("indices", indices, _INDICES)
        axis = normal_axis(self.axis, data.rank)
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        return (data.with_shape(shape),)

    def evaluate(self, run: Run, data: Array, indices: Array) -> tuple[Array, ...]:
        _check_range(indices, data, self.axis)
        return (np.take(data, indices, self.axis),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        table, row = rng.standard_normal((7, 3)), rng.standard_normal((2, 7))
        return [
            Example(cls(), (table, rng.integers(-7, 7, (2, 5)))),
            Example(cls(-1), (row, np.array(4))),
        ]


@op
class GatherElements(OpDef):
    """``y[i, j] = data[i, indices[i, j]]`` along ``axis``; the other axes agree."""

    name = "gather_elements"
    operands = ("data", "indices")
    results = ("y",)
    axis: int

    def infer(self, data: TensorType, indices: TensorType) -> tuple[TensorType, ...]:
        _check_aligned(data, indices, self.axis)
        return (data.with_shape(indices.shape),)

    def evaluate(self, run: Run, data: Array, indices: Array) -> tuple[Array, ...]:
        _check_range(indices, data, self.axis)
        return (np.take_along_axis(data, indices, self.axis),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        data, indices = rng.standard_normal((2, 7)), rng.integers(-7, 7, (2, 5))
        return [Example(cls(1), (data, indices)), Example(cls(0), (data.T, indices.T))]


@op
class ScatterElements(OpDef):
    """``data`` with ``updates[i, j]`` put at ``[i, indices[i, j]]`` along ``axis``.

    ``reduction`` "add" or "max" combines with what is there; with "none" no index may be named
    twice (which of the updates stays is undefined).
    """

    name = "scatter_elements"
    operands = ("data", "indices", "updates")
    results = ("y",)
    axis: int
    reduction: str = "none"

    def infer(
        self, data: TensorType, indices: TensorType, updates: TensorType
    ) -> tuple[TensorType, ...]:
        if self.reduction not in ("none", "add", "max"):
            raise IRError(f"reduction is {self.reduction!r}, expected 'none', 'add' or 'max'")
        _check_aligned(data, indices, self.axis)
        same_dtype(data=data, updates=updates)
        if self.reduction != "none":
            expect_dtype("data", data, NUMBERS)
        if indices.shape != updates.shape:
            raise IRError(f"'indices' ({indices}) and 'updates' ({updates}) differ in shape")
        return (data,)

    def evaluate(self, run: Run, data: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
        axis = normal_axis(self.axis, data.ndim)
        _check_range(indices, data, axis)
        y = data.copy()
        places: list[Any] = list(np.indices(indices.shape, sparse=True))
        places[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        where = tuple(places)
        if self.reduction == "none":
            y[where] = updates
        else:
            ufunc = np.add if self.reduction == "add" else np.maximum
            ufunc.at(y, where, updates)
        return (y,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        data, updates = rng.standard_normal((2, 7)), rng.standard_normal((2, 5))
        once = np.array([[6, 0, -4, 2, 1], [0, 1, 2, 3, -1]])
        often = rng.integers(-7, 7, (2, 5))
        return [
            Example(cls(1), (data, once, updates)),
            *(Example(cls(-1, kind), (data, often, updates)) for kind in ("add", "max")),
        ]


def _check_aligned(data: TensorType, indices: TensorType, axis: int) -> None:
    expect_dtype("indices", indices, _INDICES)
    if indices.rank != data.rank:
        raise IRError(f"'data' ({data}) and 'indices' ({indices}) differ in rank")
    along = normal_axis(axis, data.rank)
    for other, (want, found) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if other != along and want != found:
            raise IRError(
                f"axis {other} of 'indices' ({indices}) is {found}, expected {want} as in "
                f"'data' ({data}); only axis {along} may differ"
            )


def _check_range(indices: Array, data: Array, axis: int) -> None:
    size = data.shape[axis]
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        wrong = indices[(indices < -size) | (indices >= size)].flat[0]
        raise IRError(f"index {wrong} is out of range for axis {axis} of size {size}")


OPS: tuple[type[OpDef], ...] = (Gather, GatherElements, ScatterElements)
