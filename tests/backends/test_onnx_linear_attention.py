"""Linear attention and the short convolution in every form that a file may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.backends.onnx_graphs import agree, compile_module, kinds_of

from seqmix.errors import BackendError
from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import DType, TensorType
from seqmix_onnxruntime.model_file import MODEL

B, S = dim("B"), dim("S")
H, K, V, D, W = 3, 5, 7, 6, 4
FORMS: list[dict[str, Any]] = [
    {},
    {"opset": 27, "contrib": False},
    {"opset": 23, "contrib": False},
    {"opset": 18, "contrib": False},
]


def written(operands: list[Value], defn: Any, given: list[Value | None]) -> Module:
    b = Builder()
    results = b.emit(defn, *given)
    block = b.block(operands, list(results))
    names = tuple(f"y{i}" for i in range(len(results)))
    return Module("m", (Graph("main", block, names, (DimInfo("B"), DimInfo("S"))),))


def linear_attention(decay: str, dtype: DType = "f32", state: DType = "f32") -> Module:
    q, k = (Value(TensorType(dtype, (B, H, S, K)), n) for n in "qk")
    v = Value(TensorType(dtype, (B, H, S, V)), "v")
    shape = {"head": (B, H, S), "key": (B, H, S, K)}.get(decay)
    g = None if shape is None else Value(TensorType(dtype, shape), "g")
    s = Value(TensorType(state, (B, H, K, V)), "s")
    present = [x for x in (q, k, v, g, s) if x is not None]
    return written(present, ops.LinearAttention(), [q, k, v, g, s])


def inputs_for(module: Module, batch: int, new: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = {"B": batch, "S": new}
    made = {}
    for name, value in module.graph("main").inputs.items():
        shape = [n if isinstance(n, int) else sizes[str(n)] for n in value.type.shape]
        array = rng.normal(size=shape)
        made[name] = -np.abs(array) if name == "g" else array
        made[name] = made[name].astype({"f16": "f2", "f64": "f8"}.get(value.type.dtype, "f4"))
    return made


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("decay", ["head", "key", ""])
def test_one_file_for_every_length(decay: str, options: dict[str, Any]) -> None:
    module = linear_attention(decay)
    executable = compile_module(module, **options)
    kinds = kinds_of(executable)
    assert ("LinearAttention" in kinds) == (options.get("opset", 27) == 27)
    for batch, new in ((2, 1), (1, 7), (2, 65), (1, 96), (1, 97), (1, 130)):
        agree(module, executable, inputs_for(module, batch, new))


@pytest.mark.parametrize(("dtype", "state"), [("f16", "f16"), ("f16", "f32"), ("f64", "f64")])
def test_other_types(dtype: DType, state: DType) -> None:
    module = linear_attention("head", dtype, state)
    agree(module, compile_module(module), inputs_for(module, 2, 9))


def test_domains_of_a_file() -> None:
    module = linear_attention("head")
    for options, domains in (({}, {"", "com.microsoft"}), ({"contrib": False}, {""})):
        executable = compile_module(module, **options)
        model = onnx.load(executable.folder / MODEL)
        assert {entry.domain for entry in model.opset_import} == domains


@pytest.mark.parametrize("activation", ["", "silu"])
@pytest.mark.parametrize("options", [{}, {"contrib": False}], ids=str)
def test_short_convolution_changes_its_kernel_with_the_length(
    options: dict[str, Any], activation: str
) -> None:
    x, weight, bias, tail = (
        Value(TensorType("f32", shape), name)
        for name, shape in (("x", (B, D, S)), ("w", (D, W)), ("b", (D,)), ("t", (B, D, W - 1)))
    )
    operands = [x, weight, bias, tail]
    module = written(operands, ops.CausalConv1d(activation), list(operands))
    executable = compile_module(module, **options)
    for new in (1, 2, 15, 16, 17, 65):
        agree(module, executable, inputs_for(module, 2, new))


def test_an_opset_without_support() -> None:
    with pytest.raises(BackendError, match="opset 12 is not supported, expected 18 to 27"):
        compile_module(linear_attention("head"), opset=12)
