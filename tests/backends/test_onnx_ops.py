"""Every op of the core in ONNX Runtime against the interpreter, at sizes that were not traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.number_samples import integer_samples, widened
from tests.backends.onnx_graphs import agree, compile_module, nodes_of
from tests.ir.op_samples import DIMS, SAMPLES, SIZES, B, P, S, Sample

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.types import DType, TensorType
from seqmix_onnxruntime.backend import OnnxRuntimeBackend
from seqmix_onnxruntime.kernels import MISSING
from seqmix_onnxruntime.ops import EMITTERS

FLOAT_SAMPLES = [
    s
    for s in SAMPLES
    if s.body is None and any(t is not None and t.dtype == "f32" for t in s.types)
]
# There is no f64 kernel for erf, and no other op to write it in.
IMPOSSIBLE = {"erf", "gelu"}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_sample_in_float32(sample: Sample) -> None:
    _check(sample)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("sample", FLOAT_SAMPLES, ids=str)
def test_every_sample_in_other_floats(sample: Sample, dtype: DType) -> None:
    changed = widened(sample.with_floats(dtype), dtype)
    if dtype == "f64" and sample.defn.name in IMPOSSIBLE and "tanh" not in repr(sample.defn):
        with pytest.raises(IRError, match="no f64 kernel"):
            compile_module(changed.module())
        return
    _check(changed)


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integers_of_every_width(dtype: DType) -> None:
    for sample in integer_samples(dtype):
        _check(sample)


def test_where_of_bools() -> None:
    booleans = TensorType("bool", (B, S))
    _check(Sample(ops.Where(), (booleans, TensorType("bool", (S,)), TensorType("bool", ()))))


def test_the_table_names_ops_that_exist() -> None:
    known = {cls.name for cls in ops.CORE_OPS}
    assert set(MISSING) <= set(EMITTERS)
    # Of these ONNX has no operator; all but the first are decomposed.
    missing = {"clip_gradient", "cross_entropy", "expm1", "log1p", "selected_attention"}
    assert known - set(EMITTERS) == missing
    assert all(name in known or name.startswith("onnxruntime.") for name in EMITTERS)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample(ops.ClipGradient(1.0), (TensorType("f32", (S,)),)), "no operator"),
        (Sample(ops.RmsNorm(1e-5), (TensorType("f64", (S, 3)), None)), "no f64 kernel"),
        (Sample(ops.RmsNorm(1e-5, "f64"), (TensorType("f32", (S, 3)), None)), "no f64 kernel"),
        (Sample(ops.Silu(), (TensorType("f32", (S,)),)), None),
    ],
)
def test_supports_gives_reasons(sample: Sample, reason: Any) -> None:
    found = OnnxRuntimeBackend().supports(sample.op(), "cpu")
    assert found is None if reason is None else reason in str(found)


def test_attention_sinks_are_decomposed() -> None:
    (sample,) = [s for s in SAMPLES if s.defn.name == "attention" and s.types[6]][:1]
    assert "sinks" in str(OnnxRuntimeBackend().supports(sample.op(), "cpu"))
    kinds = {node.op_type for node in nodes_of(compile_module(sample.module()))}
    assert "MatMul" in kinds
    assert "Attention" not in kinds


def test_a_size_is_computed_once() -> None:
    b = Builder()
    x, past = Value(TensorType("f32", (B, S)), "x"), Value(TensorType("f32", (B, P)), "past")
    first = b(ops.Iota(P + S), hint="a")
    second = b(ops.Add(), first, b(ops.SizeOf(P + S)))
    third = b(ops.Expand((B, P + S)), second)
    block = b.block([x, past], [third])
    module = Module("m", (Graph("main", block, ("y",), DIMS),))
    executable = compile_module(module)
    shapes = [n for n in nodes_of(executable) if n.op_type == "Shape"]
    assert len(shapes) == 3
    arrays = {"x": _zeros(2, 5), "past": _zeros(2, 0)}
    agree(module, executable, arrays)


def test_an_input_that_is_an_output_and_an_output_twice() -> None:
    x = Value(TensorType("f32", (S,)), "x")
    b = Builder()
    y = b(ops.Neg(), x)
    module = Module("m", (Graph("main", b.block([x], [x, y, y]), ("x", "y", "z"), DIMS),))
    agree(module, compile_module(module), {"x": _zeros(3)})


def test_weights_may_be_called_like_inputs() -> None:
    x = Value(TensorType("f32", (S, 3)), "x")
    b = Builder()
    w = b(ops.Weight("x", TensorType("f32", (2, 3))))
    block = b.block([x], [b(ops.Linear(), x, w, None)])
    module = Module("m", (Graph("main", block, ("y",), DIMS),))
    weights = {"x": _zeros(2, 3) + 2}
    agree(module, compile_module(module, weights), {"x": _zeros(4, 3) + 1}, weights)


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def _check(sample: Sample) -> None:
    module = sample.module()
    executable = compile_module(module)
    for sizes in SIZES:
        agree(module, executable, sample.inputs(sizes))
