"""Loops as one generated kernel, in the interpreter, against the judge; and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.triton_cells import CELLS, B, Cell, drawn_cell, operands, scan_module, scan_op
from tests.backends.triton_groups import check_source
from torch import Tensor

from seqmix.eager import devices, plan
from seqmix.eager.source import write_function
from seqmix.scan import scan
from seqmix_ir import ops
from seqmix_ir.adjoint import adjoint
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.types import TensorType
from seqmix_triton.codegen import scan_source
from seqmix_triton.codegen.scan_kernel import ScanKernel
from seqmix_triton.codegen.training import GraphFunction

TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "bf16": 4e-2}
QUICK = ("heads", "normed")
TRAINED = ("lstm", "heads", "matrix", "normed", "elementwise")


def judged(graph: Graph, given: Mapping[str, Tensor]) -> list[np.ndarray]:
    module = Module("judge", (graph,))
    wide = {n: t.double().numpy() if t.is_floating_point() else t.numpy() for n, t in given.items()}
    return list(Interpreter(module, {}, judge=True).run(graph.name, wide).values())


def compare(graph: Graph, function: GraphFunction, given: Mapping[str, Tensor]) -> list[Tensor]:
    """Run and compare with the judge; the results."""
    found = function(*(given[name] for name in graph.inputs))
    for value, result, truth in zip(
        graph.results.values(), found, judged(graph, given), strict=True
    ):
        limit = TOLERANCE[value.type.dtype] * max(1.0, np.abs(truth).max(initial=0.0))
        error = np.abs(result.double().numpy() - truth).max(initial=0.0)
        assert error <= limit, f"{value.type}: {error}"
    return list(found)


def check(
    cell: Cell, reverse: bool, sizes: tuple[tuple[int, int], ...] = ((2, 4), (17, 1))
) -> None:
    graph = scan_module(scan_op(cell, reverse)).graphs[0]
    function = GraphFunction(graph)
    assert not function.generated.refused
    for batch, length in sizes:
        compare(graph, function, operands(graph, batch, length))


@pytest.mark.parametrize("name", QUICK)
def test_a_cell_is_one_kernel(name: str) -> None:
    check(CELLS[name], reverse=False)


@pytest.mark.full
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_every_cell_in_both_directions(name: str, reverse: bool) -> None:
    check(CELLS[name], reverse, ((1, 1), (3, 9), (33, 2)))


@pytest.mark.parametrize("name", ["lstm", "heads"])
def test_the_source_of_a_cell_is_the_golden_one(name: str) -> None:
    function = GraphFunction(scan_module(scan_op(CELLS[name])).graphs[0])
    ((_, kernel),) = function.generated.kernels()
    check_source(f"cell_{name}", kernel.source.text)


def test_a_loop_along_the_first_axis() -> None:
    graph = scan_module(scan_op(CELLS["lstm of odd width"], reverse=True, axis=0)).graphs[0]
    compare(graph, GraphFunction(graph), operands(graph, 3, 4))


@pytest.mark.parametrize("seed", [1])
def test_a_few_drawn_bodies(seed: int) -> None:
    check(drawn_cell(seed), reverse=bool(seed % 2), sizes=((3, 3),))


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_drawn_bodies(seed: int, reverse: bool) -> None:
    check(drawn_cell(seed), reverse, sizes=((3, 4),))


def test_matrices_that_are_too_large_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_source, "_MOST_CONSTANT", 64)
    graph = scan_module(scan_op(CELLS["gru"])).graphs[0]
    function = GraphFunction(graph)
    (kernel,) = (k for _, k in function.generated.kernels() if isinstance(k, ScanKernel))
    before, loop = kernel.source.text.split("for step in")
    assert "w_2_ptr +" not in before
    assert "w_2_ptr +" in loop
    assert any("reads its constants again" in note for note in function.generated.notes())
    compare(graph, function, operands(graph, 2, 3))


def test_batch_and_heads_run_in_parallel() -> None:
    def parallel(name: str) -> tuple[object, ...]:
        function = GraphFunction(scan_module(scan_op(CELLS[name])).graphs[0])
        (kernel,) = (k for _, k in function.generated.kernels() if isinstance(k, ScanKernel))
        return kernel.source.parallel

    assert parallel("lstm") == (B,)
    assert parallel("heads") == (B, 3)
    assert parallel("elementwise") == (B, 20)


def test_what_is_no_kernel_runs_step_by_step_with_its_reason() -> None:
    def write(b: Builder, h: Value, x: Value) -> tuple[Value, ...]:
        turned = b(ops.Concat(1), b(ops.Slice(1, 1, 4), h), b(ops.Slice(1, 0, 1), h))
        return b(ops.Tanh(), b(ops.Add(), turned, x)), x

    row = TensorType("f32", (B, 4))
    graph = scan_module(scan_op(Cell((row, row), 1, 1, write, "h x"))).graphs[0]
    function = GraphFunction(graph)
    (reason,) = function.generated.refused.values()
    assert "put together from parts" in reason
    compare(graph, function, operands(graph, 2, 3))


@pytest.mark.parametrize(
    "name", ["lstm of odd width", *(pytest.param(n, marks=pytest.mark.full) for n in TRAINED)]
)
def test_gradients_by_kernels_are_those_of_the_judge(name: str) -> None:
    derived = adjoint(scan_op(CELLS[name]))
    forward, backward = GraphFunction(derived.forward), GraphFunction(derived.backward)
    assert not forward.generated.refused
    assert not backward.generated.refused
    given = operands(derived.forward, 2, 5)
    out = dict(zip(derived.forward.outputs, compare(derived.forward, forward, given), strict=True))
    rest = operands(derived.backward, 2, 5, seed=1)
    known = {**rest, **given, **out}
    compare(derived.backward, backward, {n: known[n] for n in derived.backward.inputs})


def test_an_lstm_trains_as_torch_does() -> None:
    derived = adjoint(scan_op(CELLS["lstm of odd width"]))
    given = operands(derived.forward, 2, 4)
    leaves = [t.double().requires_grad_() for t in given.values()]
    h, c, x, w = leaves
    ys = []
    for t in range(x.shape[1]):
        i, f, z, o = (x[:, t] + h @ w).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * z.tanh()
        h = o.sigmoid() * c.tanh()
        ys.append(h)
    y = torch.stack(ys, 1)
    seeds = [torch.randn_like(t) for t in (h, c, y)]
    torch.autograd.backward([h, c, y], seeds)
    found = GraphFunction(derived.forward)(*given.values())
    out = dict(zip(derived.forward.outputs, found, strict=True))
    known = {**given, **out, **{f"dy{i}": s.float() for i, s in enumerate(seeds)}}
    grads = GraphFunction(derived.backward)(*(known[n] for n in derived.backward.inputs))
    for found, leaf in zip(grads, leaves, strict=True):
        torch.testing.assert_close(found.double(), leaf.grad, rtol=1e-4, atol=1e-5)


def test_carries_that_change_places_do_so_at_once() -> None:
    def write(b: Builder, first: Value, second: Value, x: Value) -> tuple[Value, ...]:
        return second, b(ops.Add(), first, x), second

    row = TensorType("f32", (B, 3))
    graph = scan_module(scan_op(Cell((row, row, row), 2, 1, write, "first second x"))).graphs[0]
    compare(graph, GraphFunction(graph), operands(graph, 2, 5))


def test_a_cell_trains_on_the_kernels_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(carries: Any, slices: Any, constants: Any) -> Any:
        gates = slices[0] + carries[0] @ constants[0]
        h = torch.tanh(gates[..., :4]) * torch.sigmoid(gates[..., 4:])
        return (h,), (h,)

    torch.manual_seed(2)
    leaves = [torch.randn(*size, requires_grad=True) for size in ((2, 4), (2, 33, 8), (4, 8))]
    grads = []
    for writer in (write_function, GraphFunction):
        monkeypatch.setitem(devices._WRITERS, "cpu", writer)
        (last,), (y,) = scan(cell, leaves[:1], leaves[1:2], leaves[2:])
        grads.append(torch.autograd.grad((y * y).sum() + last.sum(), leaves))
    assert isinstance(plan.plans()[-1].forward, GraphFunction)
    for found, wanted in zip(*reversed(grads), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
