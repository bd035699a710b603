"""Loops: any axis, both directions, constants and sizes seen from outside, nested, with states."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.backends.loops import (
    ROW,
    loop_in_a_loop,
    loop_of_floats,
    looped,
    looped_inputs,
    nested_inputs,
)
from tests.backends.onnx_graphs import agree, compile_module, nodes_of
from tests.ir.op_samples import DIMS, B, S, graph_module

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.graph import Block, Value
from seqmix_ir.types import TensorType


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_directions_constants_and_sizes(axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(axis)
    weights = {"w": rng.standard_normal((3, 3)).astype("f4")}
    module = looped(axis, reverse)
    executable = compile_module(module, weights)
    for inputs in looped_inputs(axis, rng):
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
    module = loop_in_a_loop()
    executable = compile_module(module)
    for inputs in nested_inputs():
        agree(module, executable, inputs)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_bodies_in_other_floats(dtype: Any) -> None:
    module, inputs = loop_of_floats(dtype)
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
