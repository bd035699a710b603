"""The op of the sLSTM cell: captured as one node, as a loop of simpler ops, and on ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.backends.onnx_graphs import compile_module, nodes_of, run_arrays
from tests.plugins.slstm_cases import STATES, operands, plain_slstm, worst
from torch import Tensor, nn

from seqmix.capture import capture_function
from seqmix_ir import DimInfo
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Module
from seqmix_ir.interpret import Interpreter
from seqmix_ir.verifier import verify
from seqmix_onnxruntime.session import OnnxExecutable
from seqmix_xlstm.slstm import slstm

H, D = 3, 5
LENGTHS = (1, 7, 64, 333)
NAMES = ["gates", "recurrent", *STATES]
RESULTS = ["y", "next_h", "next_c", "next_n", "next_m"]
FORGET = ("sigmoid", "exp")


class Cell(nn.Module):
    """The function as a module, for capture."""

    def __init__(self, forget: str) -> None:
        super().__init__()
        self.forget = forget

    def forward(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """In the order of the op."""
        return slstm(*operands, forget=self.forget)


def captured(forget: str, padded: bool, dtype: torch.dtype = torch.float32) -> Module:
    """A graph of any batch and length."""
    given, names = operands(2, 5, H, D, dtype), list(NAMES)
    dynamic = [("B", "S", None, None, None), None, *[("B", None, None)] * 4]
    if padded:
        given.append(torch.ones(2, 5, dtype=torch.bool))
        names.append("valid")
        dynamic.append(("B", "S"))
    return capture_function(
        Cell(forget),
        given,
        input_names=names,
        output_names=RESULTS,
        dynamic=dynamic,
        dims=[DimInfo("B"), DimInfo("S")],
        graph="main",
    ).module


def inputs(given: list[Tensor], valid: Tensor | None) -> dict[str, np.ndarray]:
    found = {name: x.numpy() for name, x in zip(NAMES, given, strict=True)}
    return found if valid is None else {**found, "valid": valid.numpy()}


def mask(B: int, S: int, padded: bool) -> Tensor | None:
    torch.manual_seed(S)
    valid = torch.rand(B, S) < 0.7
    valid[0, 0] = False
    return valid if padded else None


def close(found: dict[str, np.ndarray], wanted: tuple[Tensor, ...], tolerance: float) -> None:
    """y and h as they are; c and n times exp(m), as m itself may drift by rounding."""
    _, _, c, n, m = (torch.from_numpy(np.asarray(found[name], "f8")) for name in RESULTS)
    for name, exact in zip(RESULTS[:2], wanted, strict=False):
        assert worst(torch.from_numpy(found[name]), exact) < tolerance, name
    for state, exact in ((c, wanted[2]), (n, wanted[3])):
        drift = torch.exp(m - wanted[4])
        assert worst(state * drift, exact) < 10 * tolerance
    assert worst(m, wanted[4]) < 10 * tolerance


@pytest.mark.parametrize("forget", FORGET)
@pytest.mark.parametrize("padded", [False, True])
def test_it_is_one_node_and_its_loop_means_the_same(forget: str, padded: bool) -> None:
    module = captured(forget, padded, torch.float64)
    graph = module.graph("main")
    [op] = graph.block.ops
    assert op.name == "xlstm.slstm"
    b = Builder()
    results = op.defn.decompositions()["recurrent"](b, op)
    block = b.block(graph.block.params, results)
    loop = Module("loop", (replace(graph, block=block),))
    verify(loop)
    given, valid = operands(2, 17, H, D), mask(2, 17, padded)
    wanted = partial(plain_slstm, forget=forget)(*given, valid)
    for made in (module, loop):
        found = Interpreter(made, {}, judge=True).run("main", inputs(given, valid))
        for name, exact in zip(RESULTS, wanted, strict=True):
            assert worst(torch.from_numpy(found[name]), exact) < 1e-9


@pytest.fixture(scope="module", params=[(f, p) for f in FORGET for p in (False, True)])
def exported(request) -> tuple[str, bool, OnnxExecutable]:
    forget, padded = request.param
    executable = compile_module(captured(forget, padded))
    return forget, padded, executable


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_one_export_runs_at_every_length(exported, length: int, past: bool) -> None:
    forget, padded, executable = exported
    given = operands(2, length, H, D, torch.float32, past)
    valid = mask(2, length, padded)
    found = run_arrays(executable, inputs(given, valid))
    wanted = partial(plain_slstm, forget=forget)(*(x.double() for x in given), valid)
    # With f above 1 for many tokens m is large, and rounds what is taken from it.
    close(found, wanted, 1e-4 if forget == "exp" else 2e-5)
    if valid is not None:
        assert (found["y"][~valid.numpy()] == 0).all()


def test_an_exported_cell_is_split_like_any_other(exported) -> None:
    _, padded, executable = exported
    gates, recurrent, *states = operands(2, 7, H, D, torch.float32, past=False)
    valid = mask(2, 7, padded)
    y = run_arrays(executable, inputs([gates, recurrent, *states], valid))["y"]
    pieces, carried = [], states
    for piece in (slice(0, 1), slice(1, 4), slice(4, 7)):
        here = None if valid is None else valid[:, piece].contiguous()
        given = [gates[:, piece].contiguous(), recurrent, *carried]
        found = run_arrays(executable, inputs(given, here))
        carried = [torch.from_numpy(found[name]) for name in RESULTS[1:]]
        pieces.append(found["y"])
    np.testing.assert_allclose(np.concatenate(pieces, 1), y, rtol=0, atol=2e-6)


def test_the_body_holds_little(exported) -> None:
    """What a runtime pays for is the number of nodes in each step."""
    forget, padded, executable = exported
    [scan] = [node for node in nodes_of(executable) if node.op_type == "Scan"]
    [body] = [a.g for a in scan.attribute if a.name == "body"]
    kinds = [node.op_type for node in body.node]
    assert kinds.count("MatMul") == 1
    assert not {"Transpose", "Reshape", "Neg", "Cast"} & set(kinds)
    assert len(kinds) <= 22 + (forget == "sigmoid") + 4 * padded
