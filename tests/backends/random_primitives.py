"""Graphs of primitive ops drawn at random: what is fused with what differs from one to the next."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from tests.ir.op_samples import B, S, graph_module

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module, Value
from seqmix_ir.types import TensorType

__all__ = ["draw", "inputs"]

_WIDTH = 6
_ROWS = TensorType("f32", (B, S, _WIDTH))
_SINGLE = TensorType("f32", (B, S, 1))
_CURVES = (
    ops.Tanh(), ops.Sigmoid(), ops.Silu(), ops.Gelu(), ops.Abs(), ops.Neg(), ops.Relu(),
    ops.Softplus(), ops.Sin(), ops.Cast("f64"),
)  # fmt: skip
_PAIRS = (ops.Add(), ops.Sub(), ops.Mul(), ops.Maximum(), ops.Minimum())


def draw(seed: int, steps: int = 14) -> tuple[Module, dict[str, Array]]:
    """A module of ``steps`` steps on ``[B, S, 6]``, and its weights."""
    return _Drawing(seed).run(steps)


def inputs(batch: int, new: int) -> dict[str, Array]:
    """Arrays for a drawn module."""
    rng = np.random.default_rng(new)
    shapes = {"x": (batch, new, _WIDTH), "m": (batch, new, 1), "w": (new, _WIDTH)}
    return {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


class _Drawing:
    """Every step reads values of the pool and adds one of ``[B, S, 6]`` or ``[B, S, 1]``."""

    def __init__(self, seed: int) -> None:
        self.choice, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.b = Builder()
        self.params = [
            Value(_ROWS, "x"),
            Value(_SINGLE, "m"),
            Value(TensorType("f32", (S, _WIDTH)), "w"),
        ]
        self.pool = list(self.params)
        self.weights: dict[str, Array] = {}

    def run(self, steps: int) -> tuple[Module, dict[str, Array]]:
        kinds: list[Callable[[], Value]] = [
            self.curve, self.pair, self.pair, self.product, self.heads, self.turned, self.folded,
            self.normed, self.parts, self.summed, self.chosen, self.squared,
        ]  # fmt: skip
        for _ in range(steps):
            self.pool.append(self.choice.choice(kinds)())
        results = (self.pool[-1], self.choice.choice(self.pool[3:]))
        return graph_module(self.b, self.params, results), self.weights

    def rows(self) -> Value:
        """Some value of ``[B, S, 6]``, a late one as a rule."""
        full = [v for v in self.pool if v.type == _ROWS]
        return full[-1 - min(int(self.choice.expovariate(1.0)), len(full) - 1)]

    def tamed(self, x: Value) -> Value:
        """Kept small, so that errors stay small too."""
        return self.b(ops.Tanh(), x)

    def curve(self) -> Value:
        defn = self.choice.choice(_CURVES)
        y = self.b(defn, self.rows())
        if y.type.dtype == "f32":
            return y
        return self.b(ops.Cast("f32"), self.b(ops.Sigmoid(), y))

    def pair(self) -> Value:
        x, y = self.rows(), self.choice.choice(self.pool)
        if self.choice.random() < 0.5:
            x, y = y, x
        made = self.b(self.choice.choice(_PAIRS), x, y)
        return made if made.type == _ROWS else self.pair()

    def weight(self, columns: int, terms: int) -> Value:
        name = f"weight{len(self.weights)}"
        array = self.rng.standard_normal((columns, terms)) / np.sqrt(terms)
        self.weights[name] = array.astype("f4")
        return self.b(ops.Weight(name, TensorType("f32", (columns, terms))))

    def product(self) -> Value:
        return self.b(ops.Linear(), self.rows(), self.weight(_WIDTH, _WIDTH), None)

    def heads(self) -> Value:
        """A product whose columns become heads, and come back."""
        size = self.choice.choice((1, 5, 16))
        y = self.b(ops.Linear(), self.rows(), self.weight(3 * size, _WIDTH), None)
        y = self.b(ops.Reshape((B, S, 3, size)), y)
        y = self.b(self.choice.choice(_CURVES[:6]), self.b(ops.Transpose((0, 2, 1, 3)), y))
        single = self.b(ops.Unsqueeze((1,)), self.choice.choice(self.singles()))
        y = self.b(ops.Mul(), y, self.b(ops.Sigmoid(), single))
        y = self.b(ops.Reshape((B, S, 3 * size)), self.b(ops.Transpose((0, 2, 1, 3)), y))
        return self.b(ops.Linear(), y, self.weight(_WIDTH, 3 * size), None)

    def singles(self) -> list[Value]:
        return [v for v in self.pool if v.type == _SINGLE]

    def turned(self) -> Value:
        x = self.b(ops.Transpose((0, 2, 1)), self.rows())
        x = self.b(self.choice.choice(_CURVES[:6]), x)
        return self.b(ops.Transpose((0, 2, 1)), x)

    def folded(self) -> Value:
        """A sum or an extremum over the last axis, or over another, repeated."""
        kind = self.choice.choice(("sum", "mean", "max", "min"))
        axis = self.choice.choice((1, 2))
        y = self.b(ops.Reduce(kind, (axis,), True), self.rows())
        y = self.tamed(y)
        return y if axis == 2 else self.b(ops.Expand(_ROWS.shape), y)

    def normed(self) -> Value:
        x = self.rows()
        kind = self.choice.randrange(3)
        if kind == 0:
            return self.b(ops.Softmax(self.choice.choice((1, 2))), x)
        if kind == 1:
            return self.b(ops.RmsNorm(1e-1), x, None)
        return self.b(ops.LayerNorm(1e-1), x, None, None)

    def parts(self) -> Value:
        """Shifted by one, along the sequence or along the row."""
        axis, x = self.choice.choice((1, 2)), self.rows()
        size = x.type.shape[axis]
        if self.choice.random() < 0.5:
            return self.b(ops.Slice(axis, 0, size), self.b(ops.Pad(axis, 1, 0, 0.5), x))
        first = self.b(ops.Slice(axis, 0, 1), x)
        return self.b(ops.Concat(axis), self.b(ops.Slice(axis, 1, size), x), first)

    def summed(self) -> Value:
        axis, reverse = self.choice.choice((1, 2)), self.choice.random() < 0.5
        return self.tamed(self.b(ops.CumSum(axis, False, reverse), self.rows()))

    def chosen(self) -> Value:
        condition = self.b(ops.Less(), self.choice.choice(self.singles()), self.rows())
        return self.b(ops.Where(), condition, self.rows(), self.rows())

    def squared(self) -> Value:
        """Rows weighed by how alike they are."""
        x = self.tamed(self.rows())
        alike = self.b(ops.Matmul(), x, self.b(ops.Transpose((0, 2, 1)), self.rows()))
        return self.b(ops.Matmul(), self.b(ops.Softmax(2), alike), self.rows())
