"""Every op of the core on the tvm backend against the interpreter, at sizes not compiled for."""

from __future__ import annotations

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.number_samples import integer_samples, widened
from tests.backends.tvm_graphs import agree, batch_inputs, batched, compile_module
from tests.ir.op_samples import SAMPLES, SIZES, Sample

from seqmix_ir.types import DType

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
    check([widened(s.with_floats(dtype), dtype) for s in FLOAT_SAMPLES[start : start + PART]])


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integers_of_every_width(dtype: DType) -> None:
    check(integer_samples(dtype))
