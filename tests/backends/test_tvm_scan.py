"""Loops on the tvm backend: one kernel each, with its independent axes in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from tests.backends.loops import (
    loop_in_a_loop,
    loop_of_floats,
    looped,
    looped_inputs,
    nested_inputs,
)
from tests.backends.tvm_graphs import CONFIG, agree, compile_module
from tests.core.cells import gru_cell, lstm_cell, min_gru_cell
from tests.ir.op_samples import B, S, graph_module
from torch import Tensor, nn

import seqmix
from seqmix.backend import Program
from seqmix.capture import capture_function
from seqmix.compile import compile
from seqmix.weights import Weights
from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.graph import Value
from seqmix_ir.types import TensorType
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.kernels.follow import follow_axis
from seqmix_tvm.kernels.passes import plan_passes
from seqmix_tvm.plan import plan_block, with_copies


@pytest.mark.parametrize(("axis", "reverse"), [(0, True), (1, False), (2, True)])
def test_axes_directions_constants_and_sizes(axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(axis)
    weights = {"w": rng.standard_normal((3, 3)).astype("f4")}
    module = looped(axis, reverse)
    executable = compile_module(module, weights)
    assert sum(executable.report.kernels.values()) == 1
    for inputs in looped_inputs(axis, rng):
        agree(module, executable, inputs, weights)


def test_a_loop_in_a_loop() -> None:
    module = loop_in_a_loop()
    executable = compile_module(module)
    for inputs in nested_inputs():
        agree(module, executable, inputs)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_bodies_in_other_floats(dtype: Any) -> None:
    module, inputs = loop_of_floats(dtype)
    agree(module, compile_module(module), inputs)


def test_which_axes_are_independent() -> None:
    heads = TensorType("f32", (4, B, 6))
    matrix = TensorType("f32", (4, 6, 6))

    def turned(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        return (b(ops.Tanh(), b(ops.Add(), b(ops.Matmul(), h, w), x)),)

    body = trace_block([heads, heads, matrix], turned)
    by_head, by_row, by_element = (follow_axis(body, 1, axis) for axis in range(3))
    assert by_head is not None
    assert by_head[body.params[2]] == 0
    assert by_row is not None
    assert by_row[body.params[2]] is None
    assert by_element is None

    def mixed(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        return (b(ops.Sub(), h, b(ops.Reduce("sum", (1,), True), x)),)

    body = trace_block([heads, heads, matrix], mixed)
    assert follow_axis(body, 1, 1) is None
    assert follow_axis(body, 1, 0) is not None


def test_gates_become_one_pass_that_stores_carries_where_they_lie() -> None:
    row = TensorType("f32", (B, 4))

    def gated(b: Builder, h: Value, c: Value, x: Value) -> tuple[Value, ...]:
        new = b(ops.Add(), b(ops.Mul(), c, b(ops.Sigmoid(), x)), b(ops.Tanh(), x))
        shown = b(ops.Mul(), new, b(ops.Sigmoid(), h))
        return shown, new, shown

    body = with_copies(trace_block([row, row, row], gated))
    (one,) = plan_passes(body, plan_block(body), 2, lambda x, y: True)
    assert dict(one.in_place) == dict(zip(body.results[:2], body.params[:2], strict=True))
    assert set(one.stored) == set(body.results)

    def swapped(b: Builder, h: Value, c: Value, x: Value) -> tuple[Value, ...]:
        turned = b(ops.Transpose((1, 0)), h)
        return b(ops.Add(), h, x), b(ops.Add(), turned, c)

    square = TensorType("f32", (4, 4))
    body = with_copies(trace_block([square, square, square], swapped))
    (both,) = plan_passes(body, plan_block(body), 2, lambda x, y: True)
    assert body.results[0] not in both.in_place
    assert body.results[1] in both.in_place


def test_rows_of_a_batch_share_what_a_block_reads() -> None:
    heads, matrix = TensorType("f32", (3, B, 21)), TensorType("f32", (3, 21, 37))

    def turned(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        wide = b(ops.Matmul(), h, w)
        new = b(ops.Tanh(), b(ops.Add(), b(ops.Slice(2, 3, 24), wide), x))
        return new, wide

    body = trace_block([heads, heads, matrix], turned)
    b = Builder()
    w = b(ops.Weight("w", matrix))
    h, x = Value(heads, "h"), Value(TensorType("f32", (S, 3, B, 21)), "x")
    module = graph_module(b, [h, x], b.emit(ops.Scan(1, 1, 0), h, x, w, body=body))
    rng = np.random.default_rng(2)
    weights = {"w": (rng.standard_normal((3, 21, 37)) / 5).astype("f4")}
    executable = compile_module(module, weights)
    for batch in (1, 3, 4, 5, 8):
        shapes = {"h": (3, batch, 21), "x": (6, 3, batch, 21)}
        inputs = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
        inputs["sizes"] = np.zeros((batch, 6, 1), bool)
        agree(module, executable, {n: inputs[n] for n in module.graphs[0].inputs}, weights)


class Recurrent(nn.Module):
    """A layer of torch, written as a scan."""

    def __init__(self, layer: Any, step: Any) -> None:
        super().__init__()
        self.layer = layer
        self.step = step

    def forward(self, x: Tensor, real: Tensor, *first: Tensor) -> tuple[Tensor, ...]:
        own = self.layer
        gates = nn.functional.linear(x, own.weight_ih_l0, own.bias_ih_l0)
        constants = (own.weight_hh_l0, own.bias_hh_l0)
        last, (y,) = seqmix.scan(self.step, first, (gates, real), constants)
        return (y, *last)


@pytest.mark.parametrize(
    ("cls", "step", "states"), [(nn.LSTM, lstm_cell, 2), (nn.GRU, gru_cell, 1)]
)
def test_cells_are_those_of_torch(cls: Any, step: Any, states: int) -> None:
    torch.manual_seed(5)
    layer = cls(5, 19, batch_first=True).eval().requires_grad_(False)
    names = ["x", "real", "h", "c"][: 2 + states]
    executable = compiled(Recurrent(layer, step), names, (5, 1, 19, 19))
    assert len([k for k in executable.report.kernels if "scan" in k]) == 1
    for batch, length in ((1, 1), (3, 65), (9, 6)):
        given = example(batch, length, names, (5, 1, 19, 19))
        found = executable.run("forward", dict(zip(names, given, strict=True)))
        first = tuple(t.unsqueeze(0) for t in given[2:])
        wanted, _ = layer(given[0], first if states == 2 else first[0])
        torch.testing.assert_close(found["y"], wanted, rtol=1e-5, atol=1e-5)


def test_a_cell_without_products_runs_in_parallel_over_rows() -> None:
    class Gated(nn.Module):
        def forward(self, z: Tensor, x: Tensor, real: Tensor, h: Tensor) -> tuple[Tensor, ...]:
            (last,), (y,) = seqmix.scan(min_gru_cell, (h,), (torch.sigmoid(z), x, real))
            return y, last

    z, x, real, h = (torch.randn(3, 65, 7), torch.randn(3, 65, 7), torch.ones(3, 65, 1), None)
    h = torch.randn(3, 7)
    axes = [("B", "S", None)] * 3 + [("B", None)]
    captured = capture_function(
        Gated().eval(),
        (z, x, real.bool(), h),
        input_names=["z", "x", "real", "h"],
        output_names=["y", "last"],
        dynamic=axes,
    )
    program = Program(captured.module, Weights.of_tensors(captured.weights), CONFIG)
    executable = compile(program, TvmBackend(), cache=False)
    found = executable.run("forward", {"z": z, "x": x, "real": real.bool(), "h": h})
    gates = torch.sigmoid(z)
    for t in range(65):
        h = (1 - gates[:, t]) * h + gates[:, t] * x[:, t]
    torch.testing.assert_close(found["last"], h, rtol=1e-5, atol=1e-5)


def example(batch: int, length: int, names: list[str], sizes: tuple[int, ...]) -> list[Tensor]:
    made = []
    for name, size in zip(names, sizes, strict=False):
        shape = (batch, size) if name in "hc" else (batch, length, size)
        made.append(torch.ones(shape).bool() if name == "real" else torch.randn(shape))
    return made


def compiled(module: nn.Module, names: list[str], sizes: tuple[int, ...]) -> Any:
    axes = [("B", None) if name in "hc" else ("B", "S", None) for name in names]
    captured = capture_function(
        module.eval(),
        example(2, 9, names, sizes),
        input_names=names,
        output_names=["y", *(f"last_{n}" for n in names[2:])],
        dynamic=axes,
    )
    program = Program(captured.module, Weights.of_tensors(captured.weights), CONFIG)
    return compile(program, TvmBackend(), cache=False)
