"""Changes of shape that move no element against another, and the transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.rules import normal_axes, normal_axis, show_shape
from seqmix_ir.types import TensorType

__all__ = ["OPS", "Expand", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]


def _check_target(shape: tuple[Size, ...]) -> None:
    for axis, size in enumerate(shape):
        if isinstance(size, int) and size < 0:
            raise IRError(
                f"axis {axis} of the new shape {show_shape(shape)} is {size}; spell it out, "
                "nothing is left to be guessed"
            )


@op
class Reshape(OpDef):
    """The same elements in row-major order under another shape."""

    name = "reshape"
    operands = ("x",)
    results = ("y",)
    shape: tuple[Size, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_target(self.shape)
        before: Size = math.prod(x.shape)
        after: Size = math.prod(self.shape)
        if before != after:
            raise IRError(
                f"{x} holds {before} elements, the new shape {show_shape(self.shape)} holds {after}"
            )
        return (x.with_shape(self.shape),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (x.reshape(tuple(map(run.size, self.shape))),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [
            Example(cls((10, 2, 3)), (rng.standard_normal((2, 5, 6)),)),
            Example(cls((1,)), (np.array(0.5),)),
        ]


@op
class Transpose(OpDef):
    """Axis ``i`` of the result is axis ``perm[i]`` of ``x``."""

    name = "transpose"
    operands = ("x",)
    results = ("y",)
    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        normal = tuple(normal_axis(axis, x.rank) for axis in self.perm)
        if sorted(normal) != list(range(x.rank)):
            raise IRError(f"perm {self.perm} does not name every axis of {x} once")
        return (x.with_shape(tuple(x.shape[axis] for axis in normal)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.transpose(x, self.perm),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 5, 3))
        return [Example(cls((2, 0, -2)), (x,)), Example(cls(()), (np.array(0.5),))]


@op
class Expand(OpDef):
    """``x`` repeated along its axes of size 1 (and new leading ones) up to ``shape``."""

    name = "expand"
    operands = ("x",)
    results = ("y",)
    shape: tuple[Size, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_target(self.shape)
        lead = len(self.shape) - x.rank
        if lead < 0:
            raise IRError(f"{x} has more axes than the new shape {show_shape(self.shape)}")
        for axis, size in enumerate(x.shape):
            if size not in (1, self.shape[lead + axis]):
                raise IRError(
                    f"axis {axis} of {x} is {size}; it can become {size} only, the new shape "
                    f"{show_shape(self.shape)} asks for {self.shape[lead + axis]}"
                )
        return (x.with_shape(self.shape),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.broadcast_to(x, tuple(map(run.size, self.shape))),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls((3, 2, 5, 4)), (rng.standard_normal((2, 1, 4)),))]


@op
class Unsqueeze(OpDef):
    """New axes of size 1; ``axes`` are axes of the result."""

    name = "unsqueeze"
    operands = ("x",)
    results = ("y",)
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        shape = list(x.shape)
        for axis in normal_axes(self.axes, x.rank + len(self.axes)):
            shape.insert(axis, 1)
        return (x.with_shape(tuple(shape)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.expand_dims(x, self.axes),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls((0, -1)), (rng.standard_normal((2, 5)),))]


@op
class Squeeze(OpDef):
    """``x`` without the given axes, which must have size 1."""

    name = "squeeze"
    operands = ("x",)
    results = ("y",)
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        gone = normal_axes(self.axes, x.rank)
        for axis in gone:
            if x.shape[axis] != 1:
                raise IRError(f"axis {axis} of {x} is {x.shape[axis]}, expected 1")
        return (x.with_shape(tuple(s for i, s in enumerate(x.shape) if i not in gone)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.squeeze(x, self.axes),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls((0, -1)), (rng.standard_normal((1, 5, 1)),))]


OPS: tuple[type[OpDef], ...] = (Reshape, Transpose, Expand, Unsqueeze, Squeeze)
