"""Every op of the core on the tvm backend against the interpreter, at sizes not compiled for."""

from __future__ import annotations

import dataclasses

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.tvm_graphs import agree, batch_inputs, batched, compile_module
from tests.ir.op_samples import SAMPLES, SIZES, B, P, S, Sample, below

from seqmix_ir import ops
from seqmix_ir.types import DType, TensorType

FLOAT_SAMPLES = [
    s
    for s in SAMPLES
    if s.body is None and any(t is not None and t.dtype == "f32" for t in s.types)
]
PART = 24
"""Samples of one graph."""


def check(samples: list[Sample]) -> None:
    module = batched(samples)
    executable = compile_module(module)
    for sizes in SIZES:
        agree(module, executable, batch_inputs(samples, sizes))


@pytest.mark.parametrize("start", range(0, len(SAMPLES), PART))
def test_every_sample_in_float32(start: int) -> None:
    check(list(SAMPLES[start : start + PART]))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("start", range(0, len(FLOAT_SAMPLES), PART))
def test_every_sample_in_other_floats(start: int, dtype: DType) -> None:
    check([wide(s.with_floats(dtype), dtype) for s in FLOAT_SAMPLES[start : start + PART]])


def wide(sample: Sample, dtype: DType) -> Sample:
    if dtype != "f64" or "accumulate" not in sample.defn.attributes():
        return sample
    changed = dataclasses.replace(sample.defn, accumulate="f64")  # type: ignore[type-var]
    return dataclasses.replace(sample, defn=changed)


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integers_of_every_width(dtype: DType) -> None:
    x, row = TensorType(dtype, (B, S)), TensorType(dtype, (S,))
    data, i32 = TensorType(dtype, (B, 7)), TensorType("i32", (B, S))
    index = {1: below(7)}
    samples = [
        Sample(ops.Add(), (x, row)),
        Sample(ops.Maximum(), (x, row)),
        Sample(ops.Less(), (x, row)),
        Sample(ops.Mod(), (x, row), {1: below(7, 1)}),
        Sample(ops.FloorDiv(), (x, row), {1: below(7, 1)}),
        Sample(ops.Where(), (TensorType("bool", (B, 1)), x, row)),
        Sample(ops.Reduce("sum", (1,), False), (x,)),
        Sample(ops.Reduce("prod", (0,), True), (x,)),
        Sample(ops.Reduce("max", (1,), False), (x,)),
        Sample(ops.CumSum(1), (x,)),
        Sample(ops.Matmul(), (x, TensorType(dtype, (S, 3)))),
        Sample(ops.Pad(1, 1, P, 1.0), (x,)),
        Sample(ops.Gather(1), (data, i32), index),
        Sample(ops.GatherElements(1), (data, i32), index),
        Sample(ops.ScatterElements(1, "add"), (data, i32, x), index),
        Sample(ops.Iota(S + P, dtype)),
        Sample(ops.Cast("f32"), (x,)),
        Sample(ops.Cast("bf16"), (x,)),
    ]
    if dtype == "u8":
        fills = [{i: below(5) for i in range(len(s.types))} for s in samples]
        samples = [
            dataclasses.replace(s, fills={**f, **s.fills})
            for s, f in zip(samples, fills, strict=True)
        ]
    check(samples)
