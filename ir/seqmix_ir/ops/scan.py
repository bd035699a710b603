"""A loop along one axis, whose body is a block of ordinary ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Value
from seqmix_ir.types import DType, TensorType

__all__ = ["OPS", "Scan"]

T = TypeVar("T")


@op
class Scan(OpDef):
    """Step through the sequences: each step maps carries to carries and gives output slices.

    Operands are ``carries`` carries, ``sequences`` sequences, then constants. The body takes the
    carries, one slice of each sequence (without ``axis``) and the constants; it returns the new
    carries, of unchanged type, then the output slices. Results are the last carries and the
    outputs stacked along ``axis``. ``reverse`` steps from the end; an output slice stays at the
    place of the sequence slice it was computed from. The body is isolated: it sees no outer value.
    """

    name = "scan"
    operands = ("*operands",)
    results = ("*results",)
    region = True
    carries: int
    sequences: int
    axis: int = 1
    reverse: bool = False

    def infer(self, *operands: TensorType | None, body: Block) -> tuple[TensorType, ...]:
        carries, sequences, constants = self._split(self._present(operands))
        length = self._length(sequences)
        slices = tuple(t.with_shape(_without(t.shape, self.axis)) for t in sequences)
        self._check_params(body, carries, slices, constants)
        self._check_carries(body, carries)
        outputs = (r.type for r in body.results[self.carries :])
        return (*carries, *(self._stacked(i, t, length) for i, t in enumerate(outputs)))

    def evaluate(self, run: Run, *operands: Array, body: Block) -> tuple[Array, ...]:
        carries, sequences, constants = self._split(operands)
        length = sequences[0].shape[self.axis]
        if length == 0:
            raise IRError(
                f"scan has no steps: axis {self.axis} of its sequences is 0; give at least one"
            )
        moved = [np.moveaxis(s, self.axis, 0) for s in sequences]
        outputs: list[list[Array]] = [[] for _ in body.results[self.carries :]]
        for t in reversed(range(length)) if self.reverse else range(length):
            out = run.block(body, (*carries, *(s[t] for s in moved), *constants))
            carries = out[: self.carries]
            for collected, y in zip(outputs, out[self.carries :], strict=True):
                collected.append(y)
        order = -1 if self.reverse else 1
        return (*carries, *(np.stack(ys[::order], self.axis) for ys in outputs))

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        """A gated cell over a sequence of rows: both directions, two axes, one step alone."""
        found = []
        for S, axis, reverse in ((5, 1, False), (5, 0, True), (1, 1, False)):
            x = rng.standard_normal((S, 2, 3) if axis == 0 else (2, S, 3))
            operands = (rng.standard_normal((2, 3)), x, rng.standard_normal((3, 3)))
            found.append(Example(cls(1, 1, axis, reverse), operands, _gated_cell))
        return found

    def _split(self, items: tuple[T, ...]) -> tuple[tuple[T, ...], tuple[T, ...], tuple[T, ...]]:
        """Carries, sequences, constants."""
        first, second = self.carries, self.carries + self.sequences
        return items[:first], items[first:second], items[second:]

    def _present(self, operands: tuple[TensorType | None, ...]) -> tuple[TensorType, ...]:
        if self.carries < 0 or self.sequences < 1 or self.axis < 0:
            raise IRError(
                f"scan has {self.carries} carries, {self.sequences} sequences and axis "
                f"{self.axis}; expected 0 or more carries, at least one sequence and axis 0 or more"
            )
        present = tuple(t for t in operands if t is not None)
        if len(present) != len(operands):
            raise IRError("scan takes no absent operand; leave it out")
        if len(present) < self.carries + self.sequences:
            raise IRError(
                f"scan needs {self.carries} carries and {self.sequences} sequences, "
                f"got {len(present)} operands"
            )
        return present

    def _length(self, sequences: tuple[TensorType, ...]) -> Size:
        for i, t in enumerate(sequences):
            if t.rank <= self.axis:
                raise IRError(f"sequence {i} is {t}; it has no axis {self.axis} to step along")
        length = sequences[0].shape[self.axis]
        for i, t in enumerate(sequences):
            if t.shape[self.axis] != length:
                raise IRError(
                    f"sequence 0 is {sequences[0]}, sequence {i} is {t}: axis {self.axis} is "
                    f"{length} and {t.shape[self.axis]}"
                )
        return length

    def _check_params(self, body: Block, *wanted: tuple[TensorType, ...]) -> None:
        groups = ("carry", "slice of sequence", "constant")
        named = [
            (f"{g} {i}", t) for g, ts in zip(groups, wanted, strict=True) for i, t in enumerate(ts)
        ]
        if len(body.params) != len(named):
            raise IRError(
                f"the body takes {len(body.params)} parameters, expected {len(named)} "
                f"({', '.join(n for n, _ in named)})"
            )
        for param, (name, type) in zip(body.params, named, strict=True):
            if param.type != type:
                raise IRError(f"{name} is {type}, the body's parameter for it is {param.type}")

    def _check_carries(self, body: Block, carries: tuple[TensorType, ...]) -> None:
        if len(body.results) < len(carries):
            raise IRError(f"the body returns {len(body.results)} values for {len(carries)} carries")
        for i, (result, type) in enumerate(zip(body.results, carries, strict=False)):
            if result.type != type:
                raise IRError(f"carry {i} enters the body as {type} and leaves it as {result.type}")

    def _stacked(self, i: int, t: TensorType, length: Size) -> TensorType:
        if t.rank < self.axis:
            raise IRError(f"output {i} of the body is {t}; it cannot be stacked at {self.axis}")
        return t.with_shape((*t.shape[: self.axis], length, *t.shape[self.axis :]))


def _gated_cell(dtype: DType) -> Block:
    """``h' = s h + (1 - s) tanh(x W)`` with ``s = sigmoid(x)``; the output is ``h' - x``."""
    # A module of ops that the definition itself does not need.
    from seqmix_ir.ops.activation import Sigmoid
    from seqmix_ir.ops.arithmetic import Add, Mul, Sub
    from seqmix_ir.ops.elementwise import Tanh
    from seqmix_ir.ops.linear import Matmul

    def cell(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        gate, candidate = b(Sigmoid(), x), b(Tanh(), b(Matmul(), x, w))
        new = b(Add(), candidate, b(Mul(), gate, b(Sub(), h, candidate)))
        return new, b(Sub(), new, x)

    row, matrix = TensorType(dtype, (2, 3)), TensorType(dtype, (3, 3))
    return trace_block([row, row, matrix], cell, "h x w")


def _without(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return shape[:axis] + shape[axis + 1 :]


OPS: tuple[type[OpDef], ...] = (Scan,)
