"""Kernels for a GPU: their source runs on the CPU thread by thread, and nvcc assembles it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from tests.backends.graphs import agree, program_for
from tests.backends.loops import (
    loop_in_a_loop,
    loop_of_floats,
    looped,
    looped_inputs,
    nested_inputs,
)
from tests.backends.mixer_parity import WIDTH, check_mixer_on, examples
from tests.backends.number_samples import integer_samples, widened
from tests.backends.test_tvm_dtypes import WITH_ATTENTION, check_smaller, model
from tests.backends.test_tvm_mixer_ops import SAMPLES as MIXER_OPS
from tests.backends.tvm_emulation import COMPILER, TARGET, emulated_module, emulation
from tests.backends.tvm_graphs import batch_inputs, batched
from tests.ir.op_samples import SAMPLES, SIZES, Sample

import seqmix
from seqmix import registry
from seqmix.backend import Executable
from seqmix.compile import compile
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.errors import BackendError
from seqmix.model import Model
from seqmix.testing import check_op, check_position
from seqmix_ir.graph import Module
from seqmix_ir.types import DType
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.cuda.compiler import kernel_threads, nvcc

PART = 24
QUICK = ("softmax", "linear", "attention")
FLOAT_SAMPLES = [
    s
    for s in SAMPLES
    if s.body is None and any(t is not None and t.dtype == "f32" for t in s.types)
]
ARCHITECTURES = ("cuda:80", "cuda:90")


@pytest.fixture
def emulated() -> Iterator[None]:
    if COMPILER is None:
        pytest.skip("there is no g++ to run the source of kernels with")
    with emulation():
        yield


def check(samples: list[Sample], sizes: Any = SIZES) -> None:
    module = batched(samples)
    executable = emulated_module(module)
    for some in sizes:
        agree(module, executable, batch_inputs(samples, some))


def first_of(names: tuple[str, ...]) -> list[Sample]:
    return [next(s for s in SAMPLES if s.defn.name == name) for name in names]


def compiled(module: Module, target: str, weights: Any = None) -> Any:
    backend = TvmBackend()
    return backend.compile(program_for(backend, module, weights), target, {})


def assemble(module: Module, target: str, weights: Any = None) -> dict[str, dict[str, int]]:
    """The figures of a module's kernels; a skip that says so where nothing can assemble them."""
    return check_figures(compiled(module, target, weights))


def check_figures(executable: Executable) -> dict[str, dict[str, int]]:
    """The figures of an executable's kernels, which a GPU must be able to give."""
    found = executable.report.resources
    assert found
    if nvcc() is None:
        assert any("no nvcc" in note for note in executable.report.notes)
        pytest.skip(f"source of {len(found)} kernels was generated; no nvcc to assemble it with")
    for name, figures in found.items():
        assert 0 < figures["registers"] <= 255, name
        assert figures["shared"] <= 48 << 10, name
        assert figures["threads"] in range(32, 1025, 32), name
    return found


@pytest.mark.usefixtures("emulated")
def test_threads_compute_what_the_interpreter_does() -> None:
    check(first_of(QUICK), SIZES[:1])


def test_kernels_are_assembled_and_their_figures_reported(tmp_path: Path) -> None:
    module = batched(first_of(("softmax",)))
    executable = compiled(module, "cuda:90")
    executable.save(tmp_path)
    source = (tmp_path / "main.cu").read_text(encoding="utf-8")
    assert set(executable.report.resources) == set(kernel_threads(source))
    given = {
        name: torch.as_tensor(np.asarray(array))
        for name, array in batch_inputs(first_of(("softmax",)), SIZES[0]).items()
    }
    loaded = seqmix.load(tmp_path)
    assert loaded.report.resources == executable.report.resources
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="no CUDA device here"):
            loaded.run("main", given)
    if nvcc() is None:
        pytest.skip("source was generated; no nvcc to assemble it with")
    assert (tmp_path / "main.cubin").stat().st_size == executable.report.bytes["main.cubin"]


def test_other_targets_are_refused() -> None:
    for target in ("cuda", "cuda:1", "cuda:70", "metal"):
        with pytest.raises(BackendError, match=re.escape(f"no target '{target}'")):
            compiled(batched(first_of(("softmax",))), target)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
def test_a_barrier_that_is_missing_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqmix_tvm.cuda.writer import CudaWriter

    monkeypatch.setattr(CudaWriter, "sync", lambda self: None)
    with pytest.raises(AssertionError):
        check(list(MIXER_OPS["linear_attention"][:1]), [{"B": 2, "S": 17, "P": 1}])


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("start", range(0, len(SAMPLES), PART))
def test_every_sample_in_float32(start: int) -> None:
    check(list(SAMPLES[start : start + PART]))


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("start", range(0, len(FLOAT_SAMPLES), PART))
def test_every_sample_in_other_floats(start: int, dtype: DType) -> None:
    check([widened(s.with_floats(dtype), dtype) for s in FLOAT_SAMPLES[start : start + PART]])


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integers_of_every_width(dtype: DType) -> None:
    check(integer_samples(dtype))


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("name", MIXER_OPS)
def test_mixer_ops_at_lengths_around_their_tiles(name: str, dtype: DType) -> None:
    lengths = (1, 7, 33, 130) if dtype in ("f32", "f64") else (1, 17)
    sizes = [{"B": 2, "S": length, "P": 40 if name == "long_conv" else 1} for length in lengths]
    check([s.with_floats(dtype) for s in MIXER_OPS[name]], sizes)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
def test_products_at_sizes_around_their_tiles() -> None:
    samples = [s for s in SAMPLES if s.defn.name in ("linear", "matmul", "attention")]
    check(samples, [{"B": 3, "S": 65, "P": 70}, {"B": 1, "S": 16, "P": 130}])


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
def test_loops_are_one_launch() -> None:
    rng = np.random.default_rng(0)
    for axis, reverse in ((0, True), (1, False), (2, True)):
        weights = {"w": rng.standard_normal((3, 3)).astype("f4")}
        module = looped(axis, reverse)
        executable = emulated_module(module, weights)
        assert len(executable.report.resources) == 1
        for inputs in looped_inputs(axis, rng):
            agree(module, executable, inputs, weights)
    module = loop_in_a_loop()
    executable = emulated_module(module)
    for inputs in nested_inputs():
        agree(module, executable, inputs)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_loops_in_other_floats(dtype: Any) -> None:
    module, inputs = loop_of_floats(dtype)
    agree(module, emulated_module(module), inputs)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_mixer(name: str, dtype: str) -> None:
    for options in examples(name)[: None if dtype == "f32" else 1]:
        check_mixer_on("tvm", name, options, dtype)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", registry.op_table().names())
def test_every_op(name: str) -> None:
    report = check_op(name, "quick", ["tvm"])
    report.raise_for_failures()
    assert any(row.where.startswith("tvm") for row in report.rows)


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", registry.names("positions"))
def test_every_position_encoding(name: str) -> None:
    check_position(name, backends=["tvm"]).raise_for_failures()


@pytest.mark.full
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_models_with_smaller_weights(kind: str) -> None:
    made = model(WITH_ATTENTION)
    executable = compile(made, TvmBackend(), options={"weights": kind}, cache=False)
    assert executable.report.target == TARGET
    check_smaller(made, executable, kind)


@pytest.mark.full
@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_mixer_is_assembled(name: str, target: str) -> None:
    blocks = [
        BlockConfig(steps=[Kind.model_validate({"kind": name, **options})])
        for options in examples(name)
    ]
    config = ModelConfig(name=name, vocab_size=11, width=WIDTH, context_length=1024, blocks=blocks)
    executable = compile(Model(config).eval(), TvmBackend(), target, cache=False)
    check_figures(executable)


@pytest.mark.full
@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.parametrize("start", range(0, len(SAMPLES), PART))
def test_every_sample_is_assembled(start: int, target: str) -> None:
    assemble(batched(SAMPLES[start : start + PART]), target)


@pytest.mark.full
@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
def test_every_mixer_op_is_assembled(dtype: DType, target: str) -> None:
    samples = [s.with_floats(dtype) for own in MIXER_OPS.values() for s in own]
    found = assemble(batched(samples), target)
    assert len(found) >= len(samples) - 3


@pytest.mark.full
@pytest.mark.parametrize("target", ARCHITECTURES)
def test_loops_are_assembled(target: str) -> None:
    weights = {"w": np.ones((3, 3), "f4")}
    for module in (looped(0, True), looped(1, False), loop_in_a_loop()):
        assemble(module, target, weights)
