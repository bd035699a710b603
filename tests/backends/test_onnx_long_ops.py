"""Linear scans, long convolutions and Fourier transforms in ONNX Runtime, at free lengths."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.backends.onnx_graphs import agree, compile_module, nodes_of, run_arrays

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size, dim, floordiv
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import DType, TensorType
from seqmix_onnxruntime.session import OnnxExecutable

RNG = np.random.default_rng(9)
B, S, P, L = dim("B"), dim("S"), dim("P"), dim("L")
DIMS = {d.name: d for d in (DimInfo("B"), DimInfo("S"), DimInfo("P", min=0), DimInfo("L"))}


def module(defn: Any, *shapes: tuple[Size, ...] | None, dtype: DType = "f32") -> Module:
    params = [
        None if s is None else Value(TensorType(dtype, s), f"x{i}") for i, s in enumerate(shapes)
    ]
    b = Builder()
    results = b.emit(defn, *params)
    given = [p for p in params if p is not None]
    used = {str(size) for p in given for size in p.type.shape}
    names = tuple(f"y{i}" for i in range(len(results)))
    dims = tuple(info for name, info in DIMS.items() if name in used)
    return Module("m", (Graph("main", b.block(given, results), names, dims),))


@cache
def scan(semiring: str) -> tuple[Module, OnnxExecutable]:
    made = module(ops.LinearScan(semiring), (B, S, 5), (B, S, 5), (B, 5))
    return made, compile_module(made)


@cache
def conv(history: bool, taps: int | None = None) -> tuple[Module, OnnxExecutable]:
    past = (B, 4, P) if history else None
    made = module(ops.LongConv(), (B, 4, S), (4, taps or L), past)
    return made, compile_module(made)


def conv_inputs(S: int, L: int, P: int | None) -> dict[str, Any]:
    inputs = {"x0": normal(2, 4, S), "x1": normal(4, L) / np.float32(np.sqrt(L))}
    return inputs if P is None else {**inputs, "x2": normal(2, 4, P)}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("semiring", ["plus_times", "max_plus"])
@pytest.mark.parametrize("S", [1, 2, 24, 25, 63, 64, 65, 333, 1000])
def test_linear_scan_at_every_length(semiring: str, S: int) -> None:
    decay = RNG.uniform(0.3, 1.0, (2, S, 5)).astype(np.float32)
    b, initial = normal(2, S, 5), normal(2, 5)
    if semiring == "max_plus":
        decay, b[:, ::3], initial[0] = np.log(decay), -np.inf, -np.inf
    agree(*scan(semiring), {"x0": decay, "x1": b, "x2": initial})


def test_a_fixed_length_needs_no_choice() -> None:
    for length, kinds in ((1, {"Scan", "If"}), (64, {"Scan", "If"})):
        made = module(ops.LinearScan(), (B, length, 5), (B, length, 5), (B, 5))
        executable = compile_module(made)
        assert not kinds & {node.op_type for node in nodes_of(executable)}
        shape = (2, length, 5)
        agree(made, executable, {"x0": normal(*shape), "x1": normal(*shape), "x2": normal(2, 5)})


@pytest.mark.parametrize(
    ("S", "L", "P"),
    [
        (1, 3, None),
        (1, 600, 599),
        (1, 9, 900),
        (1, 900, 9),
        (1, 1, 5),
        (1, 4, 0),
        (65, 2, 0),
        (256, 256, None),
        (257, 256, None),
        (333, 500, 7),
        (500, 300, 400),
        (1000, 1000, 0),
    ],
)
def test_long_conv_at_every_length(S: int, L: int, P: int | None) -> None:
    agree(*conv(P is not None), conv_inputs(S, L, P))


THRESHOLDS = [
    (257, 256),  # 512 samples to transform, two columns
    (257, 257),  # three from 513 on
    (4097, 4096),
    (4097, 4097),
    (8193, 8193),
    (33000, 33000),
]


@pytest.mark.parametrize(("S", "L"), THRESHOLDS)
def test_a_long_conv_on_both_sides_of_every_threshold(S: int, L: int) -> None:
    """One file serves all of them; numpy's own transform in float64 is the judge."""
    x, taps = normal(1, 4, S), normal(4, L)
    (y,) = run_arrays(conv(False)[1], {"x0": x, "x1": taps}).values()
    exact = circular(x, taps)
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize(("S", "L"), [(1, 1), (129, 128), (129, 129), (4097, 4096), (4097, 4097)])
def test_a_long_conv_in_float64_has_all_its_digits(S: int, L: int) -> None:
    x, taps = (RNG.standard_normal(shape) for shape in ((1, 4, S), (4, L)))
    (y,) = run_arrays(conv_in_float64(), {"x0": x, "x1": taps}).values()
    exact = circular(x, taps)
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-14 * np.abs(exact).max())


@cache
def conv_in_float64() -> OnnxExecutable:
    return compile_module(module(ops.LongConv(), (B, 4, S), (4, L), None, dtype="f64"))


def circular(x: Any, taps: Any) -> Any:
    """The convolution in float64, by transforms that are long enough for nothing to wrap."""
    n = x.shape[-1] + taps.shape[-1]
    spectra = [np.fft.rfft(a.astype(np.float64), n) for a in (x, taps)]
    return np.fft.irfft(spectra[0] * spectra[1], n)[..., : x.shape[-1]]


def test_the_tables_are_not_in_the_file() -> None:
    made = module(ops.LongConv(), (B, 4, 33000), (4, 33000), None)
    for executable in (conv(False)[1], compile_module(made)):
        assert sum(path.stat().st_size for path in executable.folder.iterdir()) < 2**17


def test_a_short_filter_is_always_a_convolution_and_a_long_one_has_a_choice() -> None:
    made = module(ops.LongConv(), (B, 4, 30), (4, 40), None)
    kinds = [node.op_type for node in nodes_of(compile_module(made))]
    assert "Conv" in kinds
    assert "If" not in kinds
    assert "If" in [node.op_type for node in nodes_of(conv(False)[1])]


@pytest.mark.parametrize("S", [100, 700])
def test_no_output_sees_a_later_input(S: int) -> None:
    made, executable = conv(False)
    inputs = conv_inputs(S, S, None)
    other = {**inputs, "x0": inputs["x0"].copy()}
    other["x0"][:, :, S // 2] += 100
    before, after = (run_arrays(executable, i)["y0"][..., : S // 2] for i in (inputs, other))
    if S * S <= 256 * 256:
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-6 * 100)
    assert made.graph("main").results


@pytest.mark.parametrize(
    ("S", "L", "P"), [(1, 9, 0), (1, 9, 4), (1, 3, 40), (20, 9, 4), (300, 300, 4)]
)
def test_filters_that_share_a_channel(S: int, L: int, P: int) -> None:
    made, executable = shared()
    inputs = conv_inputs(S, L, P)
    agree(made, executable, {**inputs, "x1": np.concatenate([inputs["x1"], inputs["x1"][::-1]])})


@cache
def shared() -> tuple[Module, OnnxExecutable]:
    made = module(ops.LongConv(), (B, 4, S), (8, L), (B, 4, P))
    return made, compile_module(made)


def test_a_step_is_one_product() -> None:
    made = module(ops.LongConv(), (B, 4, 1), (4, P + 1), (B, 4, P))
    executable = compile_module(made)
    kinds = [node.op_type for node in nodes_of(executable)]
    assert "ReduceSum" in kinds
    assert not {"If", "Conv", "Gather", "MatMul"} & set(kinds)
    for past in (0, 1, 300):
        agree(made, executable, conv_inputs(1, past + 1, past))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_a_step_in_other_element_types(dtype: DType) -> None:
    made = module(ops.LongConv(), (B, 4, 1), (4, L), (B, 4, P), dtype=dtype)
    from seqmix_ir.interpret import NUMPY_DTYPES

    inputs = {k: v.astype(NUMPY_DTYPES[dtype]) for k, v in conv_inputs(1, 40, 60).items()}
    agree(made, compile_module(made), inputs)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("S", [3, 600])
def test_other_element_types(dtype: DType, S: int) -> None:
    from seqmix_ir.interpret import NUMPY_DTYPES

    made = module(ops.LongConv(), (B, 4, dim("S")), (4, 300), None, dtype=dtype)
    inputs = {k: v.astype(NUMPY_DTYPES[dtype]) for k, v in conv_inputs(S, 300, None).items()}
    agree(made, compile_module(made), inputs)
    made = module(ops.LinearScan(), (B, dim("S"), 5), (B, dim("S"), 5), (B, 5), dtype=dtype)
    arrays = (RNG.uniform(0.3, 0.9, (2, S, 5)), normal(2, S, 5), normal(2, 5))
    named = {f"x{i}": a.astype(NUMPY_DTYPES[dtype]) for i, a in enumerate(arrays)}
    agree(made, compile_module(made), named)


@pytest.mark.parametrize("n", [13, 16, S, 2 * S + 1])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fourier_transforms(n: Size, dtype: DType) -> None:
    x = Value(TensorType(dtype, (B, S)), "x")
    z = Value(TensorType(dtype, (B, floordiv(n, 2) + 1, 2)), "z")
    b = Builder()
    block = b.block([x, z], [b(ops.Rfft(n), x), b(ops.Irfft(n), z)])
    made = Module("m", (Graph("main", block, ("y", "w"), (DIMS["B"], DIMS["S"])),))
    executable = compile_module(made)
    real = np.float32 if dtype == "f32" else np.float64
    for length in (1, 2, 7, 8):
        size = n if isinstance(n, int) else {"S": length, "2*S + 1": 2 * length + 1}[str(n)]
        spectrum = RNG.standard_normal((3, size // 2 + 1, 2)).astype(real)
        samples = RNG.standard_normal((3, length)).astype(real)
        agree(made, executable, {"x": samples, "z": spectrum})


def test_an_old_opset_has_no_dft_and_needs_none() -> None:
    made = module(ops.Rfft(S), (B, S))
    executable = compile_module(made, opset=18)
    assert "DFT" not in [node.op_type for node in nodes_of(executable)]
    agree(made, executable, {"x0": normal(2, 9)})
