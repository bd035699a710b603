"""Loops that every backend is tried on, with inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.ir.op_samples import B, P, S, graph_module

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.ops import constant
from seqmix_ir.types import DType, TensorType

__all__ = ["ROW", "loop_in_a_loop", "loop_of_floats", "looped", "looped_inputs", "nested_inputs"]

ROW = TensorType("f32", (B, 3))
WEIGHT = TensorType("f32", (3, 3))


def cell(b: Builder, h: Value, x: Value, w: Value, past: Value) -> tuple[Value, ...]:
    """``h' = tanh(w h + x) * P / 2``; outputs are h' and a row of ones as long as the past."""
    turned = b(ops.Tanh(), b(ops.Add(), b(ops.Linear(), h, w, None), x))
    scale = b(ops.Cast("f32"), b(ops.SizeOf(P)))
    new = b(ops.Mul(), turned, b(ops.Mul(), scale, constant(b, 0.5, "f32")))
    return new, new, b(ops.Add(), past, b(ops.Expand((B, P)), constant(b, 1.0, "f32")))


def looped(axis: int, reverse: bool) -> Module:
    """A loop along ``axis`` that sees a constant and a size from outside; its weight is ``w``."""
    sequence = TensorType("f32", (S, B, 3) if axis == 0 else (B, 3, S) if axis == 2 else (B, S, 3))
    h, x = Value(ROW, "h"), Value(sequence, "x")
    past = Value(TensorType("f32", (B, P)), "past")
    b = Builder()
    w = b(ops.Weight("w", WEIGHT))
    body = trace_block([ROW, ROW, WEIGHT, past.type], cell, "h x w past")
    results = b.emit(ops.Scan(1, 1, axis, reverse), h, x, w, past, body=body)
    return graph_module(b, [h, x, past], results)


def looped_inputs(axis: int, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Inputs of :func:`looped` at several sizes."""
    for batch, new, past in ((2, 5, 3), (1, 1, 1), (3, 63, 2)):
        shape = {0: (new, batch, 3), 1: (batch, new, 3), 2: (batch, 3, new)}[axis]
        yield {
            "h": rng.standard_normal((batch, 3)).astype("f4"),
            "x": rng.standard_normal(shape).astype("f4"),
            "past": rng.standard_normal((batch, past)).astype("f4"),
        }


def loop_in_a_loop() -> Module:
    """A loop whose body is one."""
    inner = trace_block([ROW, ROW], lambda b, h, x: (b(ops.Add(), h, x),) * 2, "h x")

    def outer(b: Builder, h: Value, xs: Value) -> tuple[Value, ...]:
        final, partial = b.emit(ops.Scan(1, 1, 1), h, xs, body=inner)
        return b(ops.Sin(), final), partial

    h, x = Value(ROW, "h"), Value(TensorType("f32", (B, S, P, 3)), "x")
    body = trace_block([ROW, TensorType("f32", (B, P, 3))], outer, "h xs")
    b = Builder()
    return graph_module(b, [h, x], b.emit(ops.Scan(1, 1, 1), h, x, body=body))


def nested_inputs() -> Iterator[dict[str, Array]]:
    """Inputs of :func:`loop_in_a_loop`."""
    rng = np.random.default_rng(0)
    for batch, new, past in ((2, 5, 3), (1, 1, 1)):
        yield {
            "h": rng.standard_normal((batch, 3)).astype("f4"),
            "x": rng.standard_normal((batch, new, past, 3)).astype("f4"),
        }


def loop_of_floats(dtype: DType) -> tuple[Module, dict[str, Array]]:
    """A loop in any float type, and inputs."""
    row, sequence = TensorType(dtype, (B, 3)), TensorType(dtype, (B, S, 3))

    def step(b: Builder, h: Value, x: Value) -> tuple[Value, ...]:
        new = b(ops.Sigmoid(), b(ops.Add(), h, x))
        return new, b(ops.Mul(), new, x)

    h, x = Value(row, "h"), Value(sequence, "x")
    b = Builder()
    body = trace_block([row, row], step, "h x")
    rng = np.random.default_rng(1)
    inputs = {
        "h": rng.standard_normal((2, 3)).astype(NUMPY_DTYPES[dtype]),
        "x": rng.standard_normal((2, 9, 3)).astype(NUMPY_DTYPES[dtype]),
    }
    return graph_module(b, [h, x], b.emit(ops.Scan(1, 1), h, x, body=body)), inputs
