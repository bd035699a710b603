"""The linear scan of the IR: its decompositions at lengths around the chunks, and its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.dims import Size, dim
from seqmix_ir.errors import IRError
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.interpret import Interpreter, evaluate_op
from seqmix_ir.types import TensorType

RNG = np.random.default_rng(3)
FREE = dim("S")
STYLES = ("recurrent", "chunkwise", "parallel")


def operands(semiring: str, S: int, B: int = 2, D: int = 3) -> list[Array]:
    a, b = RNG.uniform(0.5, 1.0, (B, S, D)), RNG.standard_normal((B, S, D))
    initial = RNG.standard_normal((B, D))
    if semiring == "max_plus":
        a = np.log(a)
        b[:, ::3] = -np.inf
        initial[0] = -np.inf
    return [x.astype(np.float32) for x in (a, b, initial)]


def module(semiring: str, style: str, S: Size = FREE) -> Module:
    B = dim("B")
    x = TensorType("f32", (B, S, 3))
    params = [Value(x, "a"), Value(x, "b"), Value(TensorType("f32", (B, 3)), "initial")]
    b = Builder()
    results = b.emit(ops.LinearScan(semiring), *params)
    if style:
        (op,) = b.ops
        b = b.inside(style)
        results = op.defn.decompositions()[style](b, op)
    dims = (DimInfo("B"), *((DimInfo("S"),) if not isinstance(S, int) else ()))
    return Module("m", (Graph("main", b.block(params, results), ("h", "last"), dims),))


def run(made: Module, arrays: list[Array], judge: bool = False) -> dict[str, Array]:
    named = dict(zip(("a", "b", "initial"), arrays, strict=True))
    return Interpreter(made, {}, judge).run("main", named)


@pytest.mark.parametrize("semiring", ["plus_times", "max_plus"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("S", [1, 2, 7, 8, 9, 63, 64, 65, 131])
def test_decompositions_at_every_kind_of_length(semiring: str, style: str, S: int) -> None:
    arrays = operands(semiring, S)
    exact = run(module(semiring, ""), arrays, judge=True)
    for size in (FREE, S):
        found = run(module(semiring, style, size), arrays, judge=True)
        for name in exact:
            np.testing.assert_allclose(found[name], exact[name], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("semiring", ["plus_times", "max_plus"])
def test_long_sequences_lose_no_digits(semiring: str) -> None:
    # More than 64 * 64 steps, so that the second level of "parallel" has several chunks.
    arrays = operands(semiring, 4500, B=1)
    exact = run(module(semiring, ""), arrays, judge=True)
    for style in ("chunkwise", "parallel"):
        found = run(module(semiring, style), arrays)
        for name in exact:
            np.testing.assert_allclose(found[name], exact[name], rtol=5e-6, atol=5e-6)


def test_growing_sums_lose_no_digits() -> None:
    # Decays sum to -1e5 here, where a form that subtracts cumulative sums is off by 1e-2.
    a = np.full((1, 2048, 3), -50.0, np.float32)
    b = RNG.uniform(-1, 1, (1, 2048, 3)).astype(np.float32)
    for style in STYLES:
        found = run(module("max_plus", style), [a, b, b[:, 0]])
        np.testing.assert_array_equal(found["h"], b)


def test_depth_and_loops() -> None:
    """One short loop in "chunkwise", one over S / 64^3 in "parallel", none for known lengths."""

    def loops(made: Module) -> list[Any]:
        block = made.graph("main").block
        return [op.values[1].type.shape[1] for op in block.ops if op.name == "scan"]

    (chunks,) = loops(module("plus_times", "chunkwise"))
    assert str(chunks) == "ceildiv(S, 64)"
    (chunks,) = loops(module("plus_times", "parallel"))
    assert str(chunks) == "ceildiv(S, 262144)"
    assert loops(module("plus_times", "parallel", 4096)) == []


def test_nothing_stays_nothing() -> None:
    nothing = np.full((2, 65, 3), -np.inf, np.float32)
    a = RNG.standard_normal((2, 65, 3)).astype(np.float32)
    for style in ("", *STYLES):
        found = run(module("max_plus", style), [a, nothing, nothing[:, 0]])
        assert all(np.all(np.isneginf(array)) for array in found.values())


def test_a_wide_state_keeps_its_digits_between_narrow_calls() -> None:
    types = [TensorType("bf16", (1, 1, 1))] * 2 + [TensorType("f32", (1, 1))]
    b = Builder()
    results = b.emit(ops.LinearScan(), *(Value(t, n) for t, n in zip(types, "abi", strict=True)))
    assert [v.type.dtype for v in results] == ["bf16", "f32"]
    state = np.array([[1.0001]], np.float32)
    one, zero = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    h, last = evaluate_op(b.ops[0], [one, zero, state])
    assert float(h[0, 0, 0]) == 1.0
    assert last[0, 0] == state[0, 0]


@pytest.mark.parametrize(
    ("defn", "types", "message"),
    [
        (ops.LinearScan("min_plus"), ("f32", (2, 5, 3), (2, 5, 3), (2, 3)), "semiring"),
        (ops.LinearScan(), ("f32", (2, 5, 3), (2, 4, 3), (2, 3)), "axis 1 of 'b'"),
        (ops.LinearScan(), ("f32", (2, 5, 3), (2, 5, 3), (2, 4)), "axis 1 of 'initial'"),
        (ops.LinearScan(), ("f32", (2, 0, 3), (2, 0, 3), (2, 3)), "no steps"),
        (ops.LinearScan(), ("i64", (2, 5, 3), (2, 5, 3), (2, 3)), "expected dtype"),
    ],
)
def test_errors(defn: ops.LinearScan, types: Any, message: str) -> None:
    dtype, *shapes = types
    with pytest.raises(IRError, match=message):
        Builder().emit(defn, *(Value(TensorType(dtype, shape)) for shape in shapes))
