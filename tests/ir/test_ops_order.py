"""Convolution, order, running and transcendental ops against torch and by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import dim
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.types import TensorType

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 5, 7)).astype(np.float32)
TIES = RNG.integers(-2, 3, (3, 9)).astype(np.float32)
INF, NAN = np.float32(np.inf), np.float32(np.nan)
B, S = dim("B"), dim("S")


def close(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, strict=True)


def decomposed(defn: OpDef, style: str, *arrays: Any) -> list[Any]:
    """The results of a decomposition, in the judge."""
    values = [Value(TensorType("f32", a.shape), f"x{i}") for i, a in enumerate(arrays)]
    b = Builder()
    b.emit(defn, *values)
    (op,) = b.ops
    inner = Builder()
    results = defn.decompositions()[style](inner, op)
    names = tuple(f"y{i}" for i in range(len(results)))
    module = Module("m", (Graph("main", inner.block(values, results), names),))
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    return list(Interpreter(module, {}, judge=True).run("main", inputs).values())


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("stride", "dilation", "before", "after"), [(1, 1, 0, 0), (3, 2, 4, 4), (2, 3, 0, 5)]
)
def test_conv1d(
    apply: Any, groups: int, stride: int, dilation: int, before: int, after: int
) -> None:
    x, bias = RNG.standard_normal((2, 6, 11)), RNG.standard_normal(9)
    weight = RNG.standard_normal((9, 6 // groups, 3))
    defn = ops.Conv1d(stride, dilation, groups, before, after)
    padded = F.pad(torch.from_numpy(x), (before, after))
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    want = F.conv1d(padded, torch.from_numpy(weight), torch.from_numpy(bias), **options)
    close(apply(defn, x, weight, bias)[0], want.numpy(), 1e-12)


def test_conv1d_sums_in_float32(apply: Any) -> None:
    x = np.full((1, 4096, 1), 1, np.float16)
    (y,) = apply(ops.Conv1d(), x, x.transpose(2, 1, 0), None)
    assert y.dtype == np.float16
    assert y.item() == 4096


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_top_k(apply: Any, k: int, largest: bool) -> None:
    values, indices = apply(ops.TopK(k, -1, largest), TIES)
    order = torch.from_numpy(TIES).sort(dim=-1, descending=largest, stable=True)
    close(values, order.values[:, :k].numpy())
    close(indices, order.indices[:, :k].numpy())


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8, np.float64])
def test_top_k_of_every_type(apply: Any, dtype: Any) -> None:
    limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(dtype)
    x = np.array([3, limits.min, limits.max, limits.min, 3], dtype)
    values, indices = apply(ops.TopK(5, 0), x)
    assert indices.tolist() == [2, 0, 4, 1, 3]
    assert values.dtype == dtype
    assert apply(ops.TopK(5, 0, False), x)[1].tolist() == [1, 3, 0, 4, 2]
    assert apply(ops.ArgMin(0, False), x)[0].item() == 1


def test_nan_is_larger_than_everything(apply: Any) -> None:
    x = np.array([1, NAN, INF, NAN, -INF], np.float32)
    assert apply(ops.TopK(5, 0), x)[1].tolist() == [1, 3, 2, 0, 4]
    assert apply(ops.TopK(5, 0, False), x)[1].tolist() == [4, 0, 2, 1, 3]
    for largest in (True, False):
        _, indices = decomposed(ops.TopK(5, 0, largest), "counted", x)
        assert indices.tolist() == apply(ops.TopK(5, 0, largest), x)[1].tolist()


def test_top_k_of_a_size_that_shrinks() -> None:
    b, x = Builder(), Value(TensorType("f32", (B, S)), "x")
    results = b.emit(ops.TopK(3, 1), x)
    module = Module("m", (Graph("main", b.block([x], results), ("v", "i")),))
    with pytest.raises(IRError, match="takes 3 of the 2 elements along axis 1"):
        Interpreter(module, {}).run("main", {"x": X[0, :, :2]})


@pytest.mark.parametrize("keepdims", [True, False])
def test_argmin(apply: Any, keepdims: bool) -> None:
    close(apply(ops.ArgMin(1, keepdims), TIES)[0], TIES.argmin(1, keepdims=keepdims))


CUMULATIVE: list[tuple[Any, Callable[..., Any]]] = [
    (ops.CumProd, torch.cumprod),
    (ops.CumMax, lambda x, axis: torch.cummax(x, axis).values),
    (ops.CumMin, lambda x, axis: torch.cummin(x, axis).values),
    (ops.LogCumSumExp, torch.logcumsumexp),
]


@pytest.mark.parametrize(("cls", "reference"), CUMULATIVE, ids=lambda x: getattr(x, "name", ""))
def test_cumulative(apply: Any, cls: Any, reference: Any) -> None:
    x = torch.from_numpy(X)
    close(apply(cls(1), X)[0], reference(x, 1).numpy())
    backwards = reference(x.flip(1), 1).flip(1).numpy()
    close(apply(cls(1, reverse=True), X)[0], backwards)
    (exclusive,) = apply(cls(1, exclusive=True), X)
    close(exclusive[:, 1:], reference(x, 1)[:, :-1].numpy())
    assert (exclusive[:, 0] == cls(1).neutral("f32")).all()
    (both,) = apply(cls(1, True, True), X)
    close(both[:, :-1], backwards[:, 1:])


@pytest.mark.parametrize(("cls", "reference"), CUMULATIVE, ids=lambda x: getattr(x, "name", ""))
def test_cumulative_edges(apply: Any, cls: Any, reference: Any) -> None:
    row = np.array([-INF, -INF, 1, INF, 2, -INF, NAN, 3], np.float32)
    want = reference(torch.from_numpy(row), 0).numpy()
    close(apply(cls(0), row)[0], want)
    close(decomposed(cls(0), "scan", row)[0], want.astype(np.float64))
    empty = np.zeros((2, 0), np.float32)
    assert apply(cls(1), empty)[0].shape == (2, 0)
    assert decomposed(cls(1, True), "scan", empty)[0].shape == (2, 0)


def test_cumulative_integers(apply: Any) -> None:
    x = np.array([2, -3, 100, 5], np.int8)
    assert apply(ops.CumProd(0), x)[0].tolist() == np.cumprod(x, dtype=np.int8).tolist()
    assert apply(ops.CumMax(0, True), x)[0].tolist() == [-128, 2, 2, 100]
    assert apply(ops.CumMin(0, True, True), x)[0].tolist() == [-3, 5, 5, 127]


def test_logcumsumexp_is_stable(apply: Any) -> None:
    x = np.array([-1e4, 1e4, -1e4], np.float32)
    close(apply(ops.LogCumSumExp(0), x)[0], x[[0, 1, 1]])


FUNCTIONS: list[tuple[OpDef, Callable[..., torch.Tensor]]] = [
    (ops.Expm1(), torch.expm1),
    (ops.Log1p(), torch.log1p),
    (ops.Tan(), torch.tan),
    (ops.Sinh(), torch.sinh),
    (ops.Cosh(), torch.cosh),
    (ops.Atan(), torch.atan),
    (ops.Asin(), torch.asin),
    (ops.Acos(), torch.acos),
    (ops.Asinh(), torch.asinh),
    (ops.Acosh(), torch.acosh),
    (ops.Atanh(), torch.atanh),
]
NUMBERS = np.array([-80, -2, -1, -0.75, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.75, 1, 2, 80], np.float32)


@pytest.mark.parametrize(("defn", "reference"), FUNCTIONS, ids=lambda x: getattr(x, "name", ""))
def test_functions(apply: Any, defn: Any, reference: Any) -> None:
    want = reference(torch.from_numpy(NUMBERS).double()).numpy()
    np.testing.assert_allclose(apply(defn, NUMBERS)[0], want.astype(np.float32), rtol=1e-6)
    np.testing.assert_allclose(decomposed(defn, "direct", NUMBERS)[0], want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("defn", "reference"), FUNCTIONS, ids=lambda x: getattr(x, "name", ""))
def test_functions_at_the_ends(apply: Any, defn: Any, reference: Any) -> None:
    ends = np.array([INF, -INF, NAN], np.float32)
    want = reference(torch.from_numpy(ends).double()).numpy()
    np.testing.assert_allclose(apply(defn, ends)[0], want.astype(np.float32))
    np.testing.assert_allclose(decomposed(defn, "direct", ends)[0], want)


X3, W3 = TensorType("f32", (B, 6, S)), TensorType("f32", (9, 2, 3))
REFUSED = [
    (ops.Conv1d(), (X3, W3, None), r"axis 1 of 'x' .* is 6, expected 2: .* in each of 1 groups"),
    (ops.Conv1d(groups=2), (X3, TensorType("f32", (9, 3, 3)), None), r"no multiple of 2 groups"),
    (ops.Conv1d(stride=0), (X3, W3, None), r"stride is 0, expected 1 or more"),
    (ops.Conv1d(before=-1), (X3, W3, None), r"before is -1, expected 0 or more; use slice"),
    (
        ops.Conv1d(groups=3),
        (TensorType("f32", (B, 6, 2)), W3, None),
        r"3 taps at dilation 1 do not fit",
    ),
    (ops.Conv1d(groups=3), (X3, W3, TensorType("f32", (8,))), r"axis 0 of 'bias'"),
    (ops.Conv1d(groups=3), (X3, W3.with_dtype("f16"), None), r"dtypes differ"),
    (ops.TopK(7, 1), (X3,), r"takes 7 of the 6 elements along axis 1"),
    (ops.TopK(-1, 1), (X3,), r"takes -1 of the 6"),
    (ops.TopK(1), (X3.with_dtype("bool"),), r"expected dtype f64"),
    (ops.ArgMin(3, False), (X3,), r"axis 3 is out of range"),
    (ops.CumMax(1, accumulate="f16"), (X3,), r"accumulate is 'f16'"),
    (ops.LogCumSumExp(1), (X3.with_dtype("i64"),), r"expected dtype f64, f32, f16, bf16"),
    (ops.Tan(), (X3.with_dtype("i32"),), r"expected dtype f64, f32, f16, bf16"),
]


@pytest.mark.parametrize(("defn", "types", "text"), REFUSED)
def test_what_is_refused(defn: Any, types: Any, text: Any) -> None:
    operands = [None if t is None else Value(t) for t in types]
    with pytest.raises(IRError, match=text):
        Builder().emit(defn, *operands)


def test_taps_that_do_not_fit_at_run_time() -> None:
    b = Builder()
    x, w = Value(TensorType("f32", (1, 1, S)), "x"), Value(TensorType("f32", (1, 1, 3)), "w")
    y = b(ops.Conv1d(), x, w, None)
    module = Module("m", (Graph("main", b.block([x, w], [y]), ("y",)),))
    arrays = {"x": np.zeros((1, 1, 2), np.float32), "w": np.zeros((1, 1, 3), np.float32)}
    with pytest.raises(IRError, match="3 taps reach over 3 elements"):
        Interpreter(module, {}).run("main", arrays)
