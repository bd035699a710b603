"""Loops: any axis, both directions, constants and sizes seen from outside, nested, with states."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.backends.onnx_graphs import agree, compile_module, nodes_of
from tests.ir.op_samples import DIMS, B, P, S, graph_module

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.graph import Block, Module, Value
from seqmix_ir.ops import constant
from seqmix_ir.types import TensorType

ROW = TensorType("f32", (B, 3))
WEIGHT = TensorType("f32", (3, 3))


def cell(b: Builder, h: Value, x: Value, w: Value, past: Value) -> tuple[Value, ...]:
    """``h' = tanh(w h + x) * P / 2``; outputs are h' and a row of ones as long as the past."""
    turned = b(ops.Tanh(), b(ops.Add(), b(ops.Linear(), h, w, None), x))
    scale = b(ops.Cast("f32"), b(ops.SizeOf(P)))
    new = b(ops.Mul(), turned, b(ops.Mul(), scale, constant(b, 0.5, "f32")))
    return new, new, b(ops.Add(), past, b(ops.Expand((B, P)), constant(b, 1.0, "f32")))


def looped(axis: int, reverse: bool) -> Module:
    sequence = TensorType("f32", (S, B, 3) if axis == 0 else (B, 3, S) if axis == 2 else (B, S, 3))
    h, x = Value(ROW, "h"), Value(sequence, "x")
    past = Value(TensorType("f32", (B, P)), "past")
    b = Builder()
    w = b(ops.Weight("w", WEIGHT))
    body = trace_block([ROW, ROW, WEIGHT, past.type], cell, "h x w past")
    results = b.emit(ops.Scan(1, 1, axis, reverse), h, x, w, past, body=body)
    return graph_module(b, [h, x, past], results)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_directions_constants_and_sizes(axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(axis)
    weights = {"w": rng.standard_normal((3, 3)).astype("f4")}
    module = looped(axis, reverse)
    executable = compile_module(module, weights)
    for batch, new, past in ((2, 5, 3), (1, 1, 1), (3, 63, 2)):
        shape = {0: (new, batch, 3), 1: (batch, new, 3), 2: (batch, 3, new)}[axis]
        inputs = {
            "h": rng.standard_normal((batch, 3)).astype("f4"),
            "x": rng.standard_normal(shape).astype("f4"),
            "past": rng.standard_normal((batch, past)).astype("f4"),
        }
        agree(module, executable, inputs, weights)


def test_constants_are_captured_not_carried() -> None:
    weights = {"w": np.eye(3, dtype="f4")}
    (scan,) = [
        n for n in nodes_of(compile_module(looped(1, False), weights)) if n.op_type == "Scan"
    ]
    assert len(scan.input) == 2
    body = onnx.helper.get_node_attr_value(scan, "body")
    assert "w.T" in {name for node in body.node for name in node.input}
    assert not any(node.op_type in ("Shape", "Transpose") for node in body.node)


def test_a_loop_in_a_loop() -> None:
    inner = trace_block([ROW, ROW], lambda b, h, x: (b(ops.Add(), h, x),) * 2, "h x")

    def outer(b: Builder, h: Value, xs: Value) -> tuple[Value, ...]:
        final, partial = b.emit(ops.Scan(1, 1, 1), h, xs, body=inner)
        return b(ops.Sin(), final), partial

    h, x = Value(ROW, "h"), Value(TensorType("f32", (B, S, P, 3)), "x")
    body = trace_block([ROW, TensorType("f32", (B, P, 3))], outer, "h xs")
    b = Builder()
    module = graph_module(b, [h, x], b.emit(ops.Scan(1, 1, 1), h, x, body=body))
    rng = np.random.default_rng(0)
    executable = compile_module(module)
    for batch, new, past in ((2, 5, 3), (1, 1, 1)):
        inputs = {
            "h": rng.standard_normal((batch, 3)).astype("f4"),
            "x": rng.standard_normal((batch, new, past, 3)).astype("f4"),
        }
        agree(module, executable, inputs)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_bodies_in_other_floats(dtype: Any) -> None:
    row, sequence = TensorType(dtype, (B, 3)), TensorType(dtype, (B, S, 3))

    def step(b: Builder, h: Value, x: Value) -> tuple[Value, ...]:
        new = b(ops.Sigmoid(), b(ops.Add(), h, x))
        return new, b(ops.Mul(), new, x)

    h, x = Value(row, "h"), Value(sequence, "x")
    b = Builder()
    body = trace_block([row, row], step, "h x")
    module = graph_module(b, [h, x], b.emit(ops.Scan(1, 1), h, x, body=body))
    from seqmix_ir.interpret import NUMPY_DTYPES

    rng = np.random.default_rng(1)
    inputs = {
        "h": rng.standard_normal((2, 3)).astype(NUMPY_DTYPES[dtype]),
        "x": rng.standard_normal((2, 9, 3)).astype(NUMPY_DTYPES[dtype]),
    }
    agree(module, compile_module(module), inputs)


def test_a_carry_that_passes_through_and_one_given_twice() -> None:
    def step(b: Builder, h: Value, g: Value, x: Value) -> tuple[Value, ...]:
        return h, h, x, h

    h, x = Value(ROW, "h"), Value(TensorType("f32", (B, S, 3)), "x")
    body: Block = trace_block([ROW, ROW, ROW], step, "h g x")
    b = Builder()
    module = graph_module(b, [h, x], b.emit(ops.Scan(2, 1), h, h, x, body=body), DIMS[:2])
    rng = np.random.default_rng(2)
    inputs = {
        "h": rng.standard_normal((2, 3)).astype("f4"),
        "x": rng.standard_normal((2, 4, 3)).astype("f4"),
    }
    agree(module, compile_module(module), inputs)
