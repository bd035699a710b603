"""Gradients of random loops against differences, and loops with everything moved out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.adjoint_cases import Loop, check_gradients
from tests.ir.random_ops import Pool, apply_some_op
from tests.ir.random_programs import BOUND, Program, programs

from seqmix_ir.adjoint import hoist
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.ops import Scan
from seqmix_ir.types import TensorType
from seqmix_ir.verifier import verify

SHAPES = ((), (3,), (2, 3), (3, 3), (1, 2, 3))
STEPS = 3
WITHOUT = ("cast", "constants", "scan")
"""Kinds of ops that round to fewer digits than differences need, or have loops of their own."""


@st.composite
def loops(draw: st.DrawFn, smooth: bool = True) -> Loop:
    """A scan of random ops in float64, with an integer among its sequences now and then."""
    axis, reverse = draw(st.integers(0, 1)), draw(st.booleans())
    shapes = st.sampled_from(SHAPES)
    carries = [TensorType("f64", s) for s in draw(st.lists(shapes, min_size=1, max_size=2))]
    high = st.sampled_from([s for s in SHAPES if len(s) >= axis])
    slices = [TensorType("f64", s) for s in draw(st.lists(high, min_size=1, max_size=2))]
    slices += [TensorType("i64", (2, 3))] * draw(st.booleans())
    constants = [TensorType("f64", s) for s in draw(st.lists(shapes, max_size=2))]
    params = [Value(t) for t in (*carries, *slices, *constants)]
    pool = Pool(Builder(), list(params), smooth, depth=2)
    for _ in range(draw(st.integers(1, 8))):
        apply_some_op(draw, pool, WITHOUT)
    results = [
        draw(st.sampled_from([v for v in pool.values[-9:] if v.type == t] or [p]))
        for t, p in zip(carries, params, strict=False)
    ]
    stackable = [v for v in pool.values if axis <= v.type.rank < 5]
    results += draw(st.lists(st.sampled_from(stackable), max_size=2)) if stackable else []
    body = pool.b.block(params, results)
    scan = Scan(len(carries), len(slices), axis, reverse)
    stacked = [t.with_shape((*t.shape[:axis], STEPS, *t.shape[axis:])) for t in slices]
    types = [*carries, *stacked, *constants]
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    return Loop.of(scan, types, body, [_array(rng, t) for t in types])


def _array(rng: np.random.Generator, type: TensorType) -> Array:
    if type.dtype == "i64":
        return rng.integers(-4, 5, type.shape)
    return np.asarray(rng.standard_normal(type.shape))


def has_differences(loop: Loop) -> bool:
    """Random ops may make axes of sizes that nothing binds; and a clip is no derivative."""
    made = [op for op in loop.op.body.ops]
    sizes = [s for op in made for v in op.results for s in v.type.shape]
    return all(isinstance(s, int) for s in sizes) and all(op.name != "clip_gradient" for op in made)


profiles = pytest.mark.parametrize(
    "examples", [20, pytest.param(400, marks=pytest.mark.full)], ids=["quick", "full"]
)


def holds(examples: int, check: Callable[..., None], strategy: st.SearchStrategy[Any]) -> None:
    """A few fixed examples in the quick profile, else many new ones."""
    wanted = settings(
        max_examples=examples,
        derandomize=examples < 100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    wanted(given(strategy)(check))()


@profiles
def test_gradients_of_random_loops(examples: int) -> None:
    def check(loop: Loop) -> None:
        if has_differences(loop):
            check_gradients(loop, tolerance=2e-6)

    holds(examples, check, loops())


@profiles
def test_hoisting_changes_no_result(examples: int) -> None:
    def check(loop: Loop) -> None:
        if not has_differences(loop):
            return
        module = hoist(loop.module())
        verify(module)
        given_arrays = {f"x{i}": a for i, a in enumerate(loop.arrays)}
        found = Interpreter(module, {}).run("main", given_arrays)
        for name, wanted in zip(found, loop.run(loop.arrays), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-11)

    holds(examples, check, loops())


@pytest.mark.full
@pytest.mark.parametrize("examples", [100])
def test_hoisting_in_random_programs(examples: int) -> None:
    """Of every kind of op, with open sizes, loops in loops, and bodies that two loops share."""

    def check(program: Program) -> None:
        module = hoist(program.module)
        verify(module)
        for sizes in BOUND:
            inputs, weights = program.inputs(sizes), program.weights()
            wanted = Interpreter(program.module, weights, judge=True).run("main", inputs)
            found = Interpreter(module, weights, judge=True).run("main", inputs)
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-9)

    holds(examples, check, programs(smooth=True, mixers=False))
