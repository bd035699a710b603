"""The op of the mLSTM cell: captured as one node, in simpler ops, and on ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from tests.backends.onnx_graphs import compile_module, nodes_of, run_arrays
from tests.plugins.mlstm_cases import VARIANTS, operands, recurrence, worst
from torch import Tensor, nn

from seqmix.capture import capture_function
from seqmix.errors import CaptureError
from seqmix_ir import DimInfo
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Module
from seqmix_ir.interpret import Interpreter
from seqmix_ir.verifier import verify
from seqmix_xlstm.mlstm import mlstm
from seqmix_xlstm.mlstm_op import Mlstm

H, K, V = 3, 5, 7
LENGTHS = (1, 7, 64, 333)
NAMES = ["q", "k", "v", "input_gate", "forget_gate", "state", "m"]
RESULTS = ["h", "next_state", "next_m"]


class Cell(nn.Module):
    """The function as a module, for capture."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.options = options

    def forward(self, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the order of the op."""
        return mlstm(*operands, **self.options)


def captured(dtype: torch.dtype = torch.float32, **options) -> Module:
    """A graph of any batch and length."""
    token = ("B", None, "S", None)
    gate, state = token[:3], ("B", None, None, None)
    return capture_function(
        Cell(**options),
        operands(2, H, 5, K, V, dtype),
        input_names=NAMES,
        output_names=RESULTS,
        dynamic=[token, token, token, gate, gate, state, ("B", None)],
        dims=[DimInfo("B"), DimInfo("S")],
        graph="main",
    ).module


def decomposed(module: Module, style: str) -> Module:
    graph = module.graph("main")
    (op,) = graph.block.ops
    b = Builder().inside(style)
    results = op.defn.decompositions()[style](b, op)
    return Module(module.name, (replace(graph, block=b.block(graph.block.params, results)),))


def named(given: list[Tensor]) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in zip(NAMES, given, strict=True)}


def tensors(found: dict[str, np.ndarray]) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(np.asarray(found[name])) for name in RESULTS)


def test_the_preferred_form_is_one_linear_attention() -> None:
    names = [op.name for op in decomposed(captured(), "linear_attention").graph("main").block.ops]
    assert (names.count("linear_attention"), names.count("linear_scan")) == (1, 1)
    assert next(iter(Mlstm().decompositions())) == "linear_attention"


@pytest.mark.parametrize("form", ["chunkwise", "recurrent", "parallel"])
def test_any_form_is_captured_as_one_op(form: str) -> None:
    (op,) = captured(form=form, **VARIANTS["xlstm_large"]).graph("main").block.ops
    assert op.defn == Mlstm(soft_cap=15.0)


@pytest.mark.parametrize("style", ["linear_attention", "recurrent"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_simpler_ops_mean_the_same(variant: str, style: str) -> None:
    module = decomposed(captured(**VARIANTS[variant]), style)
    verify(module)
    for S in (1, 7, 64):
        given = operands(2, H, S, K, V)
        found = Interpreter(module, {}, judge=True).run("main", named(given))
        assert worst(tensors(found), recurrence(*given, **VARIANTS[variant])) < 1e-9


@pytest.mark.parametrize("style", ["", "linear_attention", "recurrent"])
def test_simpler_ops_at_extreme_gates(style: str) -> None:
    """Padding, resets, and gates from which exp(-m) overflows."""
    module = captured(soft_cap=200.0)
    module = decomposed(module, style) if style else module
    given = operands(1, H, 9, K, V, torch.float32, past=False)
    given[3][:, 0] -= 110
    given[4][:, 0] -= 110
    given[3][:, 1, 3:6], given[4][:, 1, 3:6] = -math.inf, math.inf
    given[4][:, 2, 4], given[3][:, 2, 4] = -math.inf, -math.inf
    given[6][:, 2] = -math.inf
    found = tensors(Interpreter(module, {}).run("main", named(given)))
    wanted = mlstm(*(x.double() for x in given), soft_cap=200.0)
    assert all(x.isfinite().all() for x in found)
    assert worst(found, wanted) < 1e-5
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("style", ["", "linear_attention", "recurrent"])
def test_simpler_ops_leave_the_state_at_padding(style: str) -> None:
    module = captured()
    module = decomposed(module, style) if style else module
    given = operands(2, H, 4, K, V, torch.float32)
    given[3].fill_(-math.inf)
    given[4].fill_(math.inf)
    _, state, m = tensors(Interpreter(module, {}).run("main", named(given)))
    assert torch.equal(state, given[5])
    assert torch.equal(m, given[6])


Run: TypeAlias = "Callable[[list[Tensor]], tuple[Tensor, ...]]"


@pytest.fixture(scope="module", params=["xlstm_large", "sigmoid"])
def exported(request) -> tuple[Run, dict[str, Any]]:
    """One file for all lengths, and the options it was made with."""
    options = VARIANTS[request.param]
    executable = compile_module(captured(**options))
    # Nothing goes token by token: linear attention and linear scan have forms of their own there.
    assert "Scan" not in [node.op_type for node in nodes_of(executable)]
    return lambda given: tensors(run_arrays(executable, named(given))), options


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("S", LENGTHS)
def test_one_export_runs_at_every_length(exported, S: int, past: bool) -> None:
    run, options = exported
    given = operands(2, H, S, K, V, torch.float32, past)
    wanted = recurrence(*(x.double() for x in given), **options)
    assert worst(run(given), wanted) < 2e-5


def test_padding_on_onnxruntime(exported) -> None:
    run, options = exported
    given = operands(2, H, 9, K, V, torch.float32)
    given[3][:, :, 5:], given[4][:, :, 5:] = -math.inf, math.inf
    h, state, m = run(given)
    short = [x[:, :, :5] for x in given[:5]] + given[5:]
    assert h.isfinite().all()
    assert worst((h[:, :, :5], state, m), mlstm(*short, **options)) < 2e-5


def test_capture_refuses_what_does_not_fit() -> None:
    with pytest.raises(CaptureError, match="normalize is off beside input 'exp'"):
        captured(normalize=False)


def test_torch_compile_sees_one_op() -> None:
    run = torch.compile(Cell(), backend="eager", fullgraph=True, dynamic=True)
    for S in (5, 9):
        given = operands(2, H, S, K, V)
        for one, other in zip(run(*given), mlstm(*given), strict=True):
            torch.testing.assert_close(one, other)
