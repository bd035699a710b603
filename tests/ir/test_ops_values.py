"""Values of the plain ops against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seqmix_ir import ops
from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError

RNG = np.random.default_rng(7)
X = (RNG.standard_normal((2, 5, 7)) * 3).astype(np.float32)
EDGES = np.array([-np.inf, -90.0, -3.5, -0.5, 0.0, 0.5, 1.5, 2.5, 90.0, np.inf], np.float32)


def close(found: Any, expected: Any, tolerance: Any = 2e-6) -> None:
    np.testing.assert_allclose(found, expected.numpy(), rtol=tolerance, atol=tolerance)


UNARY: list[tuple[OpDef, Callable[..., torch.Tensor]]] = [
    (ops.Neg(), torch.neg),
    (ops.Abs(), torch.abs),
    (ops.Sign(), torch.sign),
    (ops.Exp(), torch.exp),
    (ops.Log(), torch.log),
    (ops.Sqrt(), torch.sqrt),
    (ops.Reciprocal(), torch.reciprocal),
    (ops.Tanh(), torch.tanh),
    (ops.Erf(), torch.erf),
    (ops.Floor(), torch.floor),
    (ops.Ceil(), torch.ceil),
    (ops.Round(), torch.round),
    (ops.Relu(), torch.relu),
    (ops.Sigmoid(), torch.sigmoid),
]
SMOOTH: list[tuple[OpDef, Callable[..., torch.Tensor]]] = [
    (ops.Sin(), torch.sin),
    (ops.Cos(), torch.cos),
    (ops.Softplus(), F.softplus),
    (ops.Silu(), F.silu),
    (ops.Gelu(), F.gelu),
    (ops.Gelu("tanh"), lambda x: F.gelu(x, approximate="tanh")),
]


@pytest.mark.parametrize(
    ("defn", "reference"), UNARY + SMOOTH, ids=lambda x: str(getattr(x, "__name__", x))
)
def test_unary_ops(apply: Any, defn: Any, reference: Any) -> None:
    close(apply(defn, X)[0], reference(torch.from_numpy(X)))


@pytest.mark.parametrize(("defn", "reference"), UNARY, ids=lambda x: str(getattr(x, "__name__", x)))
def test_unary_ops_at_the_edges(apply: Any, defn: Any, reference: Any) -> None:
    close(apply(defn, EDGES)[0], reference(torch.from_numpy(EDGES)))


@pytest.mark.parametrize("defn", [ops.Softplus(), ops.Silu(), ops.Gelu()], ids=str)
def test_activations_do_not_overflow(apply: Any, defn: Any) -> None:
    found = apply(defn, np.array([-100.0, 100.0], np.float32))[0]
    np.testing.assert_allclose(found, [0.0, 100.0], atol=1e-30)


BINARY = [
    (ops.Add(), torch.add),
    (ops.Sub(), torch.sub),
    (ops.Mul(), torch.mul),
    (ops.Div(), torch.div),
    (ops.Maximum(), torch.maximum),
    (ops.Minimum(), torch.minimum),
    (ops.Mod(), torch.remainder),
    (ops.FloorDiv(), torch.floor_divide),
    (ops.Equal(), torch.eq),
    (ops.Less(), torch.lt),
    (ops.LessEqual(), torch.le),
    (ops.Greater(), torch.gt),
    (ops.GreaterEqual(), torch.ge),
    (ops.NotEqual(), torch.ne),
]


TYPED = [(d, r, t) for d, r in BINARY for t in ("f4", "i8", "i4") if t == "f4" or d != ops.Div()]


@pytest.mark.parametrize(
    ("defn", "reference", "dtype"), TYPED, ids=lambda x: str(getattr(x, "__name__", x))
)
def test_binary_ops_broadcast(apply: Any, defn: Any, reference: Any, dtype: Any) -> None:
    x, y = X.round().astype(dtype), np.array([[3], [-2], [1], [4], [-1]], dtype)
    found = apply(defn, x, y)[0]
    expected = reference(torch.from_numpy(x), torch.from_numpy(y))
    assert found.dtype == expected.numpy().dtype
    close(found, expected)


def test_pow(apply: Any) -> None:
    x = np.abs(X)
    close(apply(ops.Pow(), x, X)[0], torch.pow(torch.from_numpy(x), torch.from_numpy(X)), 2e-5)


def test_the_larger_of_anything_and_nan_is_nan(apply: Any) -> None:
    x = np.array([1.0, np.nan], np.float32)
    assert np.isnan(apply(ops.Maximum(), x, x[::-1].copy())[0]).all()


CASTS = [
    ("i64", np.float32, [-1.7, 1.7, 0.0], [-1, 1, 0]),
    ("bool", np.float32, [-0.5, 0.0, 2.0], [True, False, True]),
    ("f32", np.bool_, [True, False], [1.0, 0.0]),
    ("i32", np.int64, [3, -4], [3, -4]),
    ("u8", np.float32, [3.9, 254.2], [3, 254]),
]


@pytest.mark.parametrize(("to", "dtype", "values", "expected"), CASTS)
def test_casts(apply: Any, to: Any, dtype: Any, values: Any, expected: Any) -> None:
    found = apply(ops.Cast(to), np.array(values, dtype))[0]
    np.testing.assert_array_equal(found, expected)


def test_a_cast_to_bf16_rounds_to_nearest_even(apply: Any) -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1.0], np.float32)
    found = apply(ops.Cast("bf16"), x)[0]
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), [1.0, 1 + 2**-6, 1.0])


def test_the_judge_does_not_round(apply: Any) -> None:
    x = np.array([1 + 2**-20], np.float64)
    assert apply(ops.Cast("bf16"), x, judge=True)[0] == x


@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "max", "min"])
def test_reduce(apply: Any, kind: Any) -> None:
    x = torch.from_numpy(X)
    reference = {"max": torch.amax, "min": torch.amin}.get(kind) or getattr(torch, kind)
    expected = reference(x, dim=1, keepdim=True)
    close(apply(ops.Reduce(kind, (1,), True), X)[0], expected, 1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf), ("mean", np.nan)],
)
def test_reduce_over_nothing(apply: Any, kind: Any, expected: Any) -> None:
    found = apply(ops.Reduce(kind, (1,), False), np.zeros((2, 0, 3), np.float32))[0]
    np.testing.assert_array_equal(found, np.full((2, 3), expected, np.float32))


@pytest.mark.parametrize("keepdims", [True, False])
def test_argmax_takes_the_first(apply: Any, keepdims: Any) -> None:
    x = np.array([[1, 5, 5], [2, 2, 0]], np.int64)
    found = apply(ops.ArgMax(1, keepdims), x)[0]
    np.testing.assert_array_equal(found.ravel(), [1, 0])
    assert found.shape == ((2, 1) if keepdims else (2,))


def test_integers_keep_their_dtype_in_sums(apply: Any) -> None:
    x = np.ones((3, 4), np.int32)
    assert apply(ops.Reduce("sum", (0,), False), x)[0].dtype == np.int32
    assert apply(ops.CumSum(1), x)[0].dtype == np.int32


def test_bf16_sums_are_accumulated_in_float32(apply: Any) -> None:
    x = np.ones(1000, ml_dtypes.bfloat16)
    assert float(apply(ops.Reduce("sum", (0,), False), x)[0]) == 1000


def test_softmax(apply: Any) -> None:
    close(apply(ops.Softmax(1), X)[0], torch.softmax(torch.from_numpy(X), 1))


def test_softmax_of_huge_values_is_finite(apply: Any) -> None:
    found = apply(ops.Softmax(0), np.array([1e30, 1e30, -np.inf], np.float32))[0]
    np.testing.assert_array_equal(found, [0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"),
    [
        (False, False, [1, 3, 6]),
        (True, False, [0, 1, 3]),
        (False, True, [6, 5, 3]),
        (True, True, [5, 3, 0]),
    ],
)
def test_cumsum(apply: Any, exclusive: Any, reverse: Any, expected: Any) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    found = apply(ops.CumSum(-1, exclusive, reverse), x)[0]
    np.testing.assert_array_equal(found, [expected])


def test_linear_is_torch_linear(apply: Any) -> None:
    w, bias = RNG.standard_normal((3, 7)).astype("f"), RNG.standard_normal(3).astype("f")
    tensors = [torch.from_numpy(a) for a in (X, w, bias)]
    close(apply(ops.Linear(), X, w, bias)[0], F.linear(*tensors), 1e-5)


def test_linear_of_bf16_rounds_once(apply: Any) -> None:
    x, w, bias = (RNG.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((4, 9), (3, 9), 3))
    exact = x.astype("f") @ w.astype("f").T + bias.astype("f")
    found = apply(ops.Linear(), x, w, bias)[0]
    np.testing.assert_array_equal(found.astype("f"), exact.astype(ml_dtypes.bfloat16).astype("f"))


@pytest.mark.parametrize("shape", [(7,), (0, 7), (3, 7), (2, 3, 7)])
def test_linear_takes_any_rank(apply: Any, shape: Any) -> None:
    x = RNG.standard_normal(shape).astype("f")
    assert apply(ops.Linear(), x, np.ones((4, 7), "f"), None)[0].shape == (*shape[:-1], 4)


def test_norms_are_torch_norms(apply: Any) -> None:
    w, bias = RNG.standard_normal(7).astype("f"), RNG.standard_normal(7).astype("f")
    x, tw, tb = (torch.from_numpy(a) for a in (X, w, bias))
    close(apply(ops.LayerNorm(1e-5), X, w, bias)[0], F.layer_norm(x, (7,), tw, tb, 1e-5), 1e-5)
    close(apply(ops.RmsNorm(1e-6), X, w)[0], F.rms_norm(x, (7,), tw, 1e-6), 1e-5)


def test_norms_take_float32_parameters_of_bf16_inputs(apply: Any) -> None:
    found = apply(ops.RmsNorm(1e-6), X.astype(ml_dtypes.bfloat16), np.ones(7, np.float32))[0]
    assert found.dtype == ml_dtypes.bfloat16


def test_shape_ops_are_numpy(apply: Any) -> None:
    np.testing.assert_array_equal(apply(ops.Reshape((10, 7)), X)[0], X.reshape(10, 7))
    np.testing.assert_array_equal(apply(ops.Transpose((2, 0, 1)), X)[0], X.transpose(2, 0, 1))
    np.testing.assert_array_equal(apply(ops.Slice(2, 1, 6, 2), X)[0], X[..., 1:6:2])
    padded = apply(ops.Pad(1, 1, 2, 9.0), X)[0]
    np.testing.assert_array_equal(padded, np.pad(X, [(0, 0), (1, 2), (0, 0)], constant_values=9))
    np.testing.assert_array_equal(apply(ops.Concat(1), X, X)[0], np.concatenate((X, X), 1))
    np.testing.assert_array_equal(
        apply(ops.Where(), X > 0, X, np.float32(0))[0], np.where(X > 0, X, 0)
    )


def test_gather(apply: Any) -> None:
    i = np.array([[0, -1], [3, 2]])
    np.testing.assert_array_equal(apply(ops.Gather(1), X, i)[0], X[:, i])
    j = RNG.integers(0, 7, (2, 5, 3))
    expected = torch.gather(torch.from_numpy(X), 2, torch.from_numpy(j))
    np.testing.assert_array_equal(apply(ops.GatherElements(-1), X, j)[0], expected.numpy())


@pytest.mark.parametrize(("reduction", "torch_name"), [("add", "sum"), ("max", "amax")])
def test_scatter_reductions(apply: Any, reduction: Any, torch_name: Any) -> None:
    j = RNG.integers(0, 7, (2, 5, 3))
    u = RNG.standard_normal(j.shape).astype("f")
    x, tj, tu = (torch.from_numpy(a) for a in (X, j, u))
    expected = torch.scatter_reduce(x, 2, tj, tu, torch_name)
    close(apply(ops.ScatterElements(2, reduction), X, j, u)[0], expected, 1e-6)


def test_scatter_replaces_and_leaves_its_operand_alone(apply: Any) -> None:
    data = np.zeros((2, 3), np.float32)
    i, u = np.array([[2], [-3]]), np.array([[5.0], [6.0]], np.float32)
    found = apply(ops.ScatterElements(1), data, i, u)[0]
    np.testing.assert_array_equal(found, [[0, 0, 5], [6, 0, 0]])
    assert not data.any()


@pytest.mark.parametrize("wrong", [3, -4])
def test_an_index_out_of_range_is_named(apply: Any, wrong: Any) -> None:
    data = np.zeros(3, np.float32)
    with pytest.raises(IRError, match=rf"index {wrong} is out of range for axis 0 of size 3"):
        apply(ops.Gather(), data, np.array([0, wrong]))


def test_argmax_of_nothing_is_an_error(apply: Any) -> None:
    with pytest.raises(IRError, match=r"nothing to choose"):
        apply(ops.ArgMax(1, False), np.zeros((2, 0), np.float32))
