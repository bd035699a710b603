"""Ordering, running ops, convolution and captured layers in ONNX Runtime against the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.backends.onnx_graphs import agree, compile_module, nodes_of, run_arrays
from tests.ir.op_samples import SIZES, B, P, S, Sample, below
from torch import Tensor, nn

from seqmix.capture import capture_function
from seqmix_ir import DimInfo, Interpreter, ops
from seqmix_ir.types import DType, TensorType

RUNNING = (ops.CumProd, ops.CumMax, ops.CumMin, ops.LogCumSumExp)


def _check(sample: Sample, sizes: Any = SIZES) -> Any:
    module = sample.module()
    executable = compile_module(module)
    for size in sizes:
        agree(module, executable, sample.inputs(size))
    return executable


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integers_of_every_width(dtype: DType) -> None:
    x = TensorType(dtype, (B, S))
    few = {0: below(4)} if dtype == "u8" else {0: below(4, -3)}
    for defn in (
        ops.TopK(S, 1),
        ops.TopK(1, 1, False),
        ops.ArgMin(1, False),
        ops.CumProd(1),
        ops.CumMax(1, True),
        ops.CumMin(1, True, True),
    ):
        _check(Sample(defn, (x,), few))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_floats(dtype: DType) -> None:
    x = TensorType("f32", (B, 6, S))
    weight = TensorType("f32", (4, 3, 3))
    for sample in (
        Sample(ops.TopK(S, 2), (x,)),
        Sample(ops.ArgMin(2, True), (x,)),
        Sample(ops.Conv1d(2, 2, 2, 3, 3), (x, weight, TensorType("f32", (4,)))),
        *(Sample(cls(2), (x,)) for cls in RUNNING),
    ):
        _check(sample.with_floats(dtype))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("cls", ops.transcendental.OPS, ids=lambda c: c.name)
def test_functions_of_other_floats(cls: Any, dtype: DType) -> None:
    fill = {0: lambda rng, shape: rng.uniform(*cls.domain, shape)}
    _check(Sample(cls(), (TensorType("f32", (B, S)),), fill).with_floats(dtype))


@pytest.mark.parametrize("cls", RUNNING, ids=lambda c: c.name)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_ops_are_one_loop(cls: Any, exclusive: bool, reverse: bool) -> None:
    small = {0: lambda rng, shape: rng.uniform(0.9, 1.1, shape)}
    sample = Sample(cls(1, exclusive, reverse), (TensorType("f32", (B, S, P)),), small)
    sizes = [{"B": 1, "S": n, "P": p} for n, p in ((1, 2), (2, 1), (3, 1), (64, 2), (129, 1))]
    executable = _check(sample, sizes)
    kinds = [node.op_type for node in nodes_of(executable)]
    assert kinds.count("Loop") == 1
    assert "Scan" not in kinds
    _check(Sample(cls(1, exclusive, reverse), (TensorType("f32", (B, P)),)))


def test_infinities_in_running_ops() -> None:
    def edges(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return rng.choice([-np.inf, -1.0, 0.5, 2.0], shape)

    for cls in (ops.CumMax, ops.CumMin, ops.LogCumSumExp):
        _check(Sample(cls(1), (TensorType("f32", (B, S)),), {0: edges}))


def test_ties_and_sizes_of_top_k() -> None:
    few = {0: below(3)}
    _check(Sample(ops.TopK(P, 1), (TensorType("f32", (B, P + S)),), few))
    _check(Sample(ops.TopK(S, 0, False), (TensorType("i64", (S, 3)),), few))


def test_taps_may_have_any_number() -> None:
    executable = _check(
        Sample(
            ops.Conv1d(groups=3, before=7),
            (TensorType("f32", (B, 3, S)), TensorType("f32", (3, 1, P + 1)), None),
        )
    )
    (conv,) = (node for node in nodes_of(executable) if node.op_type == "Conv")
    assert "kernel_shape" not in {a.name for a in conv.attribute}


def test_float64_convolution_is_decomposed() -> None:
    wide = dataclasses.replace(ops.Conv1d(), accumulate="f64")
    operands = (TensorType("f32", (B, 2, S)), TensorType("f32", (3, 2, 1)), None)
    kinds = {node.op_type for node in nodes_of(_check(Sample(wide, operands)))}
    assert "MatMul" in kinds
    assert "Conv" not in kinds


class _Turned(nn.Module):
    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.transpose(1, 2))


def _attend(x: Tensor) -> Tensor:
    q = x.unflatten(1, (3, 2)).transpose(2, 3)
    return F.scaled_dot_product_attention(q, q, q * 2, is_causal=True)


def _masked(x: Tensor) -> Tensor:
    q = x.unflatten(1, (3, 2)).transpose(2, 3)
    mask = x[:, 0, :, None] > x[:, 1, None]
    return F.scaled_dot_product_attention(q, q, q, mask.unsqueeze(1))


CAPTURED: dict[str, Callable[..., Any]] = {
    "group_norm": nn.GroupNorm(3, 6),
    "instance_norm": nn.InstanceNorm1d(6, affine=True),
    "batch_norm": nn.BatchNorm1d(6),
    "conv": nn.Conv1d(6, 4, 3, padding="same", groups=2),
    "sorted": lambda x: x.sort(-1).values + x.argsort(-1, descending=True),
    "top": lambda x: x.topk(2, 1).values.cummax(-1).values,
    "statistics": lambda x: (
        x.var(-1) + x.std((1, 2), unbiased=False)[:, None] + x.norm(p=3, dim=-1)
    ),
    "normalize": lambda x: F.normalize(x, dim=-1) + x.logcumsumexp(-1),
    "activations": lambda x: (
        F.hardswish(x) + F.mish(x) + F.elu(x) + F.celu(x, 0.5) + F.glu(x, 1).sum()
    ),
    "functions": lambda x: x.expm1() + x.atan() + torch.atan2(x, x + 1) + x.trunc() + x.fmod(0.7),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 3, 0]), x[:, :3]),
    "index_put": lambda x: torch.index_put(x, (x > 0,), torch.tensor(2.0)),
    "reduce": lambda x: x.scatter_reduce(1, x[:, :4].argsort(1), x[:, 2:], "mean"),
    "nan_to_num": lambda x: (x / x.round()).nan_to_num(1.0, 2.0, 3.0),
    "windows": lambda x: x.unfold(1, 3, 2).sum(-1) + F.avg_pool1d(x.mT, 2).mean(),
    "attention": _attend,
    "mask": _masked,
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_functions(name: str) -> None:
    torch.manual_seed(2)
    found = capture_function(
        _Turned(CAPTURED[name]).eval(),
        [torch.randn(2, 5, 6)],
        input_names=["x"],
        output_names=["y"],
        dynamic=[("B", "S", None)],
        dims=[DimInfo("S", 2)],
    )
    weights = {k: v.numpy() for k, v in found.weights.items()}
    executable = compile_module(found.module, weights)
    judge = Interpreter(found.module, weights, judge=True)
    for batch, length in ((1, 2), (3, 65)):
        x = np.random.default_rng(length).standard_normal((batch, length, 6)).astype(np.float32)
        want = judge.run("forward", {"x": x})["y"]
        have = run_arrays(executable, {"x": x}, "forward")["y"]
        np.testing.assert_allclose(have, want, rtol=3e-5, atol=3e-5)
