"""Graphs as functions of torch calls: every op as the interpreter has it, and what is fused."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import torch
from tests.ir.op_samples import SAMPLES, SIZES, Sample

from seqmix.eager.calls import CALLS
from seqmix.eager.source import write_function
from seqmix.errors import BackendError
from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.graph import Graph, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.ops import constant
from seqmix_ir.types import TensorType

KNOWN = [s for s in SAMPLES if s.defn.name in CALLS or s.defn.name == "scan"]
SLOPPY = {"bf16": 2e-2, "f16": 2e-3}


def test_every_call_has_a_sample() -> None:
    assert {s.defn.name for s in KNOWN} == {*CALLS, "scan"}


@pytest.mark.parametrize("sample", KNOWN, ids=str)
def test_calls_compute_what_ops_mean(sample: Sample) -> None:
    module = sample.module()
    graph = module.graph("main")
    inputs = sample.inputs(SIZES[0])
    wanted = Interpreter(module, {}).run("main", inputs)
    function = write_function(graph)
    found = function(*(torch.from_numpy(np.asarray(inputs[n])) for n in graph.inputs))
    for value, tensor, array in zip(graph.results.values(), found, wanted.values(), strict=True):
        assert tuple(tensor.shape) == array.shape
        assert str(tensor.dtype).removeprefix("torch.") == array.dtype.name
        limit = SLOPPY.get(value.type.dtype, 2e-6)
        np.testing.assert_allclose(
            tensor.double().numpy(), array.astype(np.float64), rtol=limit, atol=limit
        )


def written(*types: TensorType, build) -> str:
    block = trace_block(types, build)
    names = tuple(f"y{i}" for i in range(len(block.results)))
    return write_function(Graph("main", block, names)).source


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def test_products_and_sums_are_one_call() -> None:
    def build(b: Builder, x: Value, w: Value, y: Value) -> tuple[Value, ...]:
        total = b(ops.Add(), b(ops.Matmul(), x, w), y)
        return b(ops.Sub(), total, b(ops.Mul(), y, y)), b(ops.Sub(), b(ops.Mul(), y, y), y)

    source = written(f32(2, 3), f32(3, 4), f32(2, 4), build=build)
    assert re.findall(r"= (\w+)\(v", source) == ["addmm", "addcmul", "mul", "sub"]


def test_what_is_read_twice_is_not_fused() -> None:
    def build(b: Builder, x: Value) -> tuple[Value, ...]:
        square = b(ops.Mul(), x, x)
        return b(ops.Add(), square, x), square

    assert "addcmul" not in written(f32(2), build=build)


def test_pieces_are_one_call_where_they_are_the_whole() -> None:
    def build(b: Builder, x: Value, n: int) -> tuple[Value, ...]:
        return tuple(b(ops.Slice(1, 2 * i, 2 * i + 2), x) for i in reversed(range(n)))

    assert "v1, v2, v3 = v0.chunk(3, 1)" in written(f32(2, 6), build=partial(build, n=3))
    assert "chunk" not in written(f32(2, 6), build=partial(build, n=2))


def test_a_clamp_and_a_log_sigmoid_are_one_call() -> None:
    def build(b: Builder, x: Value) -> tuple[Value, ...]:
        low, high = constant(b, -1.0, "f32"), constant(b, 1.0, "f32")
        cut = b(ops.Minimum(), b(ops.Maximum(), x, low), high)
        return cut, b(ops.Sub(), cut, b(ops.Softplus(), b(ops.Neg(), x)))

    source = written(f32(2), build=build)
    assert "clamp(v0, -1.0, 1.0)" in source
    assert "log_sigmoid(v0)" in source


def test_an_op_without_a_call_is_refused_by_name() -> None:
    def build(b: Builder, x: Value) -> tuple[Value, ...]:
        b.loc = type(b.loc)("mine.py:4")
        return (b(ops.RmsNorm(1e-5), x, None),)

    with pytest.raises(BackendError, match=r"mine.py:4: eager: 'rms_norm'"):
        written(f32(2, 3), build=build)
