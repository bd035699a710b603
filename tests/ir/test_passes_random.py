"""Passes on random programs: what they compute stays, and a second run changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.random_programs import BOUND, Program, programs

from seqmix_ir import Interpreter, Module, fingerprint, parse, same, show, verify
from seqmix_ir.defn import Array, OpDef
from seqmix_ir.graph import Op
from seqmix_ir.ops import CORE_OPS
from seqmix_ir.passes import canonicalize, cse, dce, fold, legalize, lower, tighten

EXACT: dict[str, Callable[[Module], Module]] = {
    "cse": cse,
    "dce": dce,
    "fold": fold,
    "tighten": tighten,
}
PASSES = {**EXACT, "canonicalize": canonicalize}
DECOMPOSED = sorted(cls.name for cls in CORE_OPS if cls.decompositions is not OpDef.decompositions)
# They spread a NaN over the whole axis, or not, each in its own way.
FOURIER = {"irfft", "long_conv", "rfft"}
profiles = pytest.mark.parametrize(
    "examples", [25, pytest.param(1000, marks=pytest.mark.full)], ids=["quick", "full"]
)


def holds(examples: int, check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Run a property: a few fixed examples in the quick profile, else many new ones."""
    wanted = settings(
        max_examples=examples,
        derandomize=examples < 100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    wanted(given(*strategies)(check))()


@dataclass
class Some:
    """A backend that refuses ops by name where they decompose, by styles in a random order."""

    refused: frozenset[str]
    seed: int
    name: str = "some"

    def supports(self, op: Op) -> str | None:
        refused = op.name in self.refused and op.defn.decompositions()
        return f"no {op.name} here" if refused else None

    def prefer(self, op: Op) -> tuple[str, ...]:
        styles = sorted(op.defn.decompositions())
        random.Random(f"{self.seed} {op.name}").shuffle(styles)
        return tuple(styles)


def backends() -> st.SearchStrategy[Some]:
    names = st.frozensets(st.sampled_from(DECOMPOSED)) | st.just(frozenset(DECOMPOSED))
    return st.builds(Some, names, st.integers(0, 99))


@profiles
def test_text_comes_back(examples: int) -> None:
    def check(program: Program) -> None:
        verify(program.module)
        text = show(program.module, locs=True)
        again = parse(text)
        assert same(again, program.module)
        assert show(again, locs=True) == text
        assert fingerprint(again) == fingerprint(program.module)

    holds(examples, check, programs())


@profiles
def test_passes_come_to_rest(examples: int) -> None:
    def check(program: Program) -> None:
        for name, change in PASSES.items():
            once = change(program.module)
            verify(once)
            assert same(change(once), once), name

    holds(examples, check, programs())


@profiles
def test_values_stay_to_the_bit(examples: int) -> None:
    """Folding computes in the declared dtypes, as a plain run does and the judge does not."""

    def check(program: Program) -> None:
        changed = {name: change(program.module) for name, change in EXACT.items()}
        for sizes in BOUND:
            inputs = program.inputs(sizes, special=True)
            for judge in (False, True):
                expected = run(program, program.module, inputs, judge)
                for name in (n for n in EXACT if n != "fold" or not judge):
                    found = run(program, changed[name], inputs, judge)
                    assert_equal_bits(found, expected, name)

    holds(examples, check, programs())


@profiles
def test_canonical_form_means_the_same(examples: int) -> None:
    def check(program: Program) -> None:
        assert_close(program, canonicalize(program.module), signs=True)

    holds(examples, check, programs(smooth=True))


@profiles
def test_decompositions_mean_the_same(examples: int) -> None:
    def check(program: Program, backend: Some) -> None:
        legal, record = legalize(program.module, backend)
        assert not record.impossible
        verify(legal)
        assert all(backend.supports(op) is None for op in legal.graph("main").block.walk())
        assert_close(program, legal)

    holds(examples, check, programs(smooth=True), backends())


@profiles
def test_the_whole_way_means_the_same(examples: int) -> None:
    def check(program: Program, backend: Some) -> None:
        legal, _ = lower(program.module, backend, verify_each=True)
        assert all(backend.supports(op) is None for op in legal.graph("main").block.walk())
        assert_close(program, legal)

    holds(examples, check, programs(smooth=True), backends())


def run(
    program: Program, module: Module, inputs: dict[str, Array], judge: bool
) -> dict[str, Array]:
    return Interpreter(module, program.weights(), judge).run("main", inputs)


def assert_equal_bits(found: dict[str, Array], expected: dict[str, Array], name: str) -> None:
    """The same bytes, of infinities, NaN and zeros too."""
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(bits(found[key]), bits(array), f"{name}: {key}")


def bits(array: Array) -> Array:
    """The bytes of an array, with one NaN for all."""
    kept = np.where(np.isnan(array), np.nan, array) if array.dtype.kind not in "ib" else array
    return np.ascontiguousarray(kept).view(np.uint8)


def assert_close(program: Program, changed: Module, signs: bool = False) -> None:
    """Equal in the judge within rounding, with the same NaN and infinities, and signs of zero."""
    special = FOURIER.isdisjoint(op.name for op in program.module.graph("main").block.walk())
    for sizes in BOUND:
        inputs = program.inputs(sizes, special)
        expected = run(program, program.module, inputs, judge=True)
        for key, found in run(program, changed, inputs, judge=True).items():
            np.testing.assert_allclose(found, expected[key], rtol=1e-5, atol=1e-6, err_msg=key)
            zero = (found == 0) & (expected[key] == 0)
            if signs and found.dtype.kind == "f":
                pair = np.signbit(found)[zero], np.signbit(expected[key])[zero]
                np.testing.assert_array_equal(*pair, err_msg=f"{key}: sign of zero")
