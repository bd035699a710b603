"""The mixer ops that have kernels on the tvm backend, at lengths around those of their blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from numpy.typing import NDArray
from tests.backends.graphs import CONFIG
from tests.backends.tvm_graphs import agree, batch_inputs, batched, compile_module
from tests.ir.op_samples import B, P, S, Sample, f32

from seqmix.backend import Program
from seqmix.capture import capture_function
from seqmix.compile import compile
from seqmix.ops import causal_conv1d, linear_scan
from seqmix.weights import Weights
from seqmix_ir import ops
from seqmix_ir.types import DType
from seqmix_tvm.backend import TvmBackend

LENGTHS = (1, 7, 15, 16, 17, 64, 65, 130)


def below_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Logarithms of decays; the first of every row forgets all."""
    decay = -rng.exponential(0.3, shape)
    decay[..., 0] = -np.inf
    return decay


def between(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    return rng.uniform(0.2, 1.0, shape)


def nothing(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.zeros(shape)


def some_nothing(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers of (max, +), every third of which is its zero."""
    x = rng.standard_normal(shape)
    x[..., ::3] = -np.inf
    return x


def attention(H: int, K: int, V: int, decay: str) -> tuple[Sample, ...]:
    """Linear attention from a state, and from none."""
    gates = {"": None, "head": f32(B, H, S), "key": f32(B, H, S, K)}[decay]
    types = (f32(B, H, S, K), f32(B, H, S, K), f32(B, H, S, V), gates, f32(B, H, K, V))
    given = Sample(ops.LinearAttention(), types, {3: below_zero})
    return given, dataclasses.replace(given, fills={3: below_zero, 4: nothing})


def convolution(D: int, W: int, activation: str, bias: bool = True) -> Sample:
    types = (f32(B, D, S), f32(D, W), f32(D) if bias else None, f32(B, D, W - 1))
    return Sample(ops.CausalConv1d(activation), types)


def recurrence(semiring: str, D: int) -> tuple[Sample, ...]:
    types = (f32(B, S, D), f32(B, S, D), f32(B, D))
    plus = semiring == "plus_times"
    fills = {0: between} if plus else {0: below_zero, 1: some_nothing}
    given = Sample(ops.LinearScan(semiring), types, fills)
    empty = nothing if plus else lambda rng, shape: np.full(shape, -np.inf)
    return given, dataclasses.replace(given, fills={**fills, 2: empty})


def long_convolution(D: Any, filters: Any, taps: Any, past: bool) -> Sample:
    history = f32(B, D, P) if past else None
    return Sample(ops.LongConv(), (f32(B, D, S), f32(filters, taps), history))


SAMPLES: dict[str, tuple[Sample, ...]] = {
    "linear_attention": (
        *attention(2, 8, 16, "head"),
        attention(1, 5, 81, "key")[0],
        attention(3, 1, 3, "")[0],
    ),
    "causal_conv1d": (
        convolution(3, 4, "silu"),
        convolution(5, 1, ""),
        convolution(1, 2, "silu", bias=False),
        convolution(2, 9, "", bias=False),
    ),
    "linear_scan": (
        *recurrence("plus_times", 3),
        *recurrence("max_plus", 3),
        recurrence("plus_times", 1030)[0],
    ),
    "long_conv": (
        long_convolution(3, 3, S, past=False),
        long_convolution(9, 18, 70, past=True),
        long_convolution(1, 1, P, past=True),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_length(name: str) -> None:
    check(name, SAMPLES[name])


def test_what_has_no_kernel_says_why() -> None:
    narrow = attention(2, 8, 16, "head")[0].with_floats("bf16")
    for sample, why in (
        (convolution(2, 70, ""), "70 taps"),
        (long_convolution(B, B, 3, past=False), "number of channels"),
        (narrow, "state in bf16"),
    ):
        (op,) = (o for o in batched([sample]).graphs[0].block.ops if o.defn == sample.defn)
        assert why in str(TvmBackend().supports(op, "cpu"))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_length_in_other_floats(name: str, dtype: DType) -> None:
    # Running sums of hundreds of numbers in 16 bits are compared at fewer steps.
    lengths = LENGTHS if dtype == "f64" else (1, 17)
    check(name, [s.with_floats(dtype) for s in SAMPLES[name]], lengths, native=dtype == "f64")


def check(name: str, samples: Any, lengths: tuple[int, ...] = LENGTHS, native: bool = True) -> None:
    """One library for all samples; each of them is one kernel."""
    past = 40 if name == "long_conv" else 1
    module = batched(samples)
    executable = compile_module(module)
    if native:
        used = executable.report.kernels
        assert sum(n for kernel, n in used.items() if name in kernel) == len(samples)
    for length in lengths:
        for batch in (1, 3) if length == 17 else (2,):
            agree(module, executable, batch_inputs(samples, {"B": batch, "S": length, "P": past}))


def test_a_wide_state_beside_narrow_tokens() -> None:
    sample = attention(2, 8, 16, "head")[0].with_floats("bf16")
    types = [*sample.types[:3], *(f32(*t.shape) for t in sample.types[3:] if t is not None)]
    mixed = dataclasses.replace(sample, types=tuple(types))
    check("linear_attention", [mixed], (1, 65))


def test_halves_of_a_sequence_are_the_whole() -> None:
    for name in ("linear_attention", "causal_conv1d", "linear_scan"):
        sample = SAMPLES[name][0]
        module = batched([sample])
        executable = compile_module(module)
        given = {
            key: torch.as_tensor(np.asarray(array))
            for key, array in batch_inputs([sample], {"B": 2, "S": 130, "P": 1}).items()
        }
        whole = list(executable.run("main", given).values())
        axis = 1 if name == "linear_scan" else 2
        state = f"s0x{len(sample.types) - 1}"
        parts = []
        for start, end in ((0, 1), (1, 66), (66, 130)):
            cut = {key: piece(x, axis, start, end) for key, x in given.items() if key != "sizes"}
            cut |= {state: given[state], "sizes": torch.zeros(2, end - start, 1).bool()}
            cut |= {key: given[key] for key in fixed(name)}
            y, given[state] = executable.run("main", cut).values()
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, axis), whole[0], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(given[state], whole[1], rtol=2e-5, atol=2e-5)


def piece(x: torch.Tensor, axis: int, start: int, end: int) -> torch.Tensor:
    return x.narrow(axis, start, end - start) if x.dim() > axis and x.shape[axis] == 130 else x


def fixed(name: str) -> tuple[str, ...]:
    """Inputs without a time."""
    return ("s0x1", "s0x2") if name == "causal_conv1d" else ()


def test_operands_are_computed_on_the_way() -> None:
    def gated(z: torch.Tensor, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keep = torch.sigmoid(z)
        return linear_scan(keep, (1 - keep) * x, h)

    z, x, h = torch.randn(2, 9, 12), torch.randn(2, 9, 12), torch.randn(2, 12)
    executable = captured(gated, {"z": z, "x": x, "h": h}, [("B", "S", None)] * 2 + [("B", None)])
    z, x, h = torch.randn(3, 33, 12), torch.randn(3, 33, 12), torch.randn(3, 12)
    found = list(executable.run("forward", {"z": z, "x": x, "h": h}).values())
    for result, wanted in zip(found, gated(z, x, h), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_channels_may_come_last() -> None:
    weight, bias = torch.randn(6, 4), torch.randn(6)

    def mixed(x: torch.Tensor, tail: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.transpose(1, 2) * 2
        y, tail = causal_conv1d(turned, weight, bias, tail, activation="silu")
        return y.transpose(1, 2), tail

    axes = [("B", "S", None), ("B", None, None)]
    given = {"x": torch.randn(2, 9, 6), "tail": torch.randn(2, 6, 3)}
    executable = captured(mixed, given, axes)
    given = {"x": torch.randn(1, 80, 6), "tail": torch.randn(1, 6, 3)}
    found = list(executable.run("forward", given).values())
    for result, wanted in zip(found, mixed(**given), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def captured(function: Any, given: dict[str, torch.Tensor], axes: list[Any]) -> Any:
    """A function of torch, compiled with sizes that are not known."""

    class Module(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return function(*inputs)

    made = capture_function(
        Module().eval(),
        tuple(given.values()),
        input_names=list(given),
        output_names=["y", "last"],
        dynamic=axes,
    )
    program = Program(made.module, Weights.of_tensors(made.weights), CONFIG)
    return compile(program, TvmBackend(), cache=False)
