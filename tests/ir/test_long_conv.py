"""The long convolution and the Fourier ops of the IR against numpy, at free lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array, OpDef
from seqmix_ir.dims import Size, dim, floordiv
from seqmix_ir.errors import IRError
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.types import TensorType

RNG = np.random.default_rng(5)
STYLES = ("four_step", "fft", "conv", "direct")
B, S, P, L = dim("B"), dim("S"), dim("P"), dim("L")
DIMS = (DimInfo("B"), DimInfo("S"), DimInfo("P", min=0), DimInfo("L"))


def module(
    defn: OpDef, shapes: Sequence[tuple[Size, ...] | None], style: str, dtype: Any = "f32"
) -> Module:
    params = [
        None if s is None else Value(TensorType(dtype, s), f"x{i}") for i, s in enumerate(shapes)
    ]
    b = Builder()
    results = b.emit(defn, *params)
    if style:
        (op,) = b.ops
        b = b.inside(style)
        results = op.defn.decompositions()[style](b, op)
    given = [p for p in params if p is not None]
    used = {str(size) for p in given for size in p.type.shape}
    dims = tuple(info for info in DIMS if info.name in used)
    return Module("m", (Graph("main", b.block(given, results), ("y",), dims),))


def run(made: Module, arrays: Sequence[Array | None], judge: bool = False) -> Array:
    named = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    return Interpreter(made, {}, judge).run("main", named)["y"]


def conv(history: bool, style: str) -> Module:
    return module(ops.LongConv(), [(B, 3, S), (3, L), (B, 3, P) if history else None], style)


@pytest.mark.parametrize("style", ["", *STYLES])
@pytest.mark.parametrize(("S", "L", "P"), [(1, 9, 6), (5, 40, 0), (65, 200, 3)])
def test_filters_that_share_a_channel(style: str, S: int, L: int, P: int) -> None:
    """Row ``c * D + d`` is filter c of channel d."""
    made = module(ops.LongConv(), [(B, 3, dim("S")), (6, L), (B, 3, dim("P"))], style)
    x, filter, history = arrays(S, L, P)
    both = np.concatenate([filter, 2 * filter[::-1]])
    y = run(made, (x, both, history))
    for rows, taps in ((slice(0, 3), filter), (slice(3, 6), 2 * filter[::-1])):
        wanted = run(conv(True, ""), (x, taps, history), judge=True)
        np.testing.assert_allclose(y[:, rows], wanted, atol=2e-5 * np.abs(wanted).max())


def test_filters_come_in_whole_sets() -> None:
    for shapes in ([(B, 3, S), (4, L), None], [(B, 3, S), (2, L), None], [(B, S, S), (6, L), None]):
        with pytest.raises(IRError, match="axis 0 of 'filter'"):
            module(ops.LongConv(), shapes, "")


def arrays(S: int, L: int, P: int | None) -> list[Any]:
    shapes = [(2, 3, S), (3, L), None if P is None else (2, 3, P)]
    return [None if s is None else RNG.standard_normal(s).astype(np.float32) for s in shapes]


CASES = [(1, 1, None), (1, 9, 6), (5, 2, 0), (5, 40, 7), (63, 65, None), (65, 3, 130), (70, 200, 3)]


@pytest.mark.parametrize(("S", "L", "P"), CASES)
def test_the_definition_is_numpy_convolve(S: int, L: int, P: int | None) -> None:
    x, filter, history = arrays(S, L, P)
    y = run(conv(P is not None, ""), (x, filter, history), judge=True)
    seq = x if history is None else np.concatenate((history, x), 2)
    for b, d in np.ndindex(2, 3):
        whole = np.convolve(seq[b, d].astype(float), filter[d].astype(float))
        np.testing.assert_allclose(y[b, d], whole[P or 0 :][:S], atol=1e-12)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("S", "L", "P"), CASES)
def test_decompositions(style: str, S: int, L: int, P: int | None) -> None:
    operands = arrays(S, L, P)
    exact = run(conv(P is not None, ""), operands, judge=True)
    fixed = [None if a is None else a.shape for a in operands]
    for made in (conv(P is not None, style), module(ops.LongConv(), fixed, style)):
        np.testing.assert_allclose(run(made, operands, judge=True), exact, atol=1e-12)
        error = np.abs(run(made, operands) - exact).max()
        assert error <= 1e-6 * np.abs(exact).max() + 1e-6


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("S", "L"),
    [(64, 65), (65, 65), (128, 129), (129, 129), (4097, 4096), (4097, 4097), (8193, 8193)],
)
def test_four_steps_of_every_number_of_samples(S: int, L: int, fixed: bool) -> None:
    """128 samples to transform, 129, 256, 257, 8192, 8193 and 16385."""
    x, filter = RNG.standard_normal((1, 2, S)), RNG.standard_normal((2, L))
    sizes = (S, L) if fixed else (dim("S"), dim("L"))
    shapes = [(1, 2, sizes[0]), (2, sizes[1]), None]
    y = run(module(ops.LongConv(), shapes, "four_step", "f64"), (x, filter, None))
    spectra = (np.fft.rfft(a, S + L) for a in (x, filter))
    exact = np.fft.irfft(next(spectra) * next(spectra), S + L)[..., :S]
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-14 * np.abs(exact).max())


@pytest.mark.parametrize("style", ["", *STYLES])
def test_no_output_sees_a_later_input(style: str) -> None:
    x, filter, history = arrays(40, 50, 5)
    other = x.copy()
    other[:, :, 23] += 100
    made = conv(True, style)
    before, after = run(made, (x, filter, history)), run(made, (other, filter, history))
    if style in ("fft", "four_step"):
        scale = np.abs(after).max()
        np.testing.assert_allclose(after[..., :23], before[..., :23], atol=1e-6 * scale)
    else:
        np.testing.assert_array_equal(after[..., :23], before[..., :23])
    assert not np.allclose(after[..., 23], before[..., 23])


def test_a_wide_filter_beside_narrow_inputs() -> None:
    types = [TensorType("bf16", (1, 2, 3)), TensorType("f32", (2, 4))]
    (y,) = Builder().emit(ops.LongConv(), *(Value(t) for t in types), None)
    assert y.type == types[0]


@pytest.mark.parametrize("n", [1, 2, 7, 8, 13, 30])
@pytest.mark.parametrize("given", [1, 7, 16])
def test_rfft_is_numpy(n: int, given: int) -> None:
    x = RNG.standard_normal((2, given))
    wanted = np.fft.rfft(x, n)
    for style in ("", "matmul"):
        y = run(module(ops.Rfft(n), [(2, S)], style, "f64"), [x])
        np.testing.assert_allclose(y, np.stack((wanted.real, wanted.imag), -1), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 13, 30])
def test_irfft_is_numpy(n: int) -> None:
    x = RNG.standard_normal((2, n // 2 + 1, 2))
    wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1], n)
    shape = (B, floordiv(S, 2) + 1, 2)
    b = Builder()
    spectrum, samples = Value(TensorType("f64", shape), "x"), Value(TensorType("f64", (S,)), "s")
    y = b(ops.Irfft(S), spectrum)
    graph = Graph("main", b.block([spectrum, samples], [y]), ("y",), DIMS[:2])
    found = Interpreter(Module("m", (graph,)), {}).run("main", {"x": x, "s": np.zeros(n)})
    np.testing.assert_allclose(found["y"], wanted, atol=1e-12)
    by_matmul = run(module(ops.Irfft(n), [(B, n // 2 + 1, 2)], "matmul", "f64"), [x[:, :, :]])
    np.testing.assert_allclose(by_matmul, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("defn", "shapes", "message"),
    [
        (ops.LongConv(), ((2, 3, 5), (4, 6), None), "axis 0 of 'filter'"),
        (ops.LongConv(), ((2, 3, 5), (3, 0), None), "at least 1"),
        (ops.LongConv(), ((2, 3, 5), (3, 4), (1, 3, 2)), "axis 0 of 'history'"),
        (ops.Rfft(0), ((2, 3),), "at least 1"),
        (ops.Rfft(4), ((),), "scalar"),
        (ops.Irfft(6), ((2, 3, 2),), "half spectrum"),
    ],
)
def test_errors(defn: OpDef, shapes: Any, message: str) -> None:
    values = (None if s is None else Value(TensorType("f32", s)) for s in shapes)
    with pytest.raises(IRError, match=message):
        Builder().emit(defn, *values)


def test_channels_of_unknown_number_have_no_depthwise_form() -> None:
    D = dim("D")
    with pytest.raises(IRError, match="number of channels"):
        module(ops.LongConv(), [(B, D, S), (D, L), None], "conv")
