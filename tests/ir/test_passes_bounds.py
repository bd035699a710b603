"""Bounds of sizes: ranges against integers, shorter sizes, and what a graph gains from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ir.random_graphs import NAMES, Expression, bindings, expressions

from seqmix_ir import Module, parse, show, verify
from seqmix_ir.dims import (
    Size,
    ceildiv,
    dim,
    evaluate_size,
    floordiv,
    isqrt,
    maximum_size,
    minimum_size,
)
from seqmix_ir.graph import DimInfo
from seqmix_ir.passes import canonicalize, specialise, tighten
from seqmix_ir.passes.bounds import Bounds

B, S, P = dim("B"), dim("S"), dim("P")
HEADER = (DimInfo("B"), DimInfo("S", 1, 64), DimInfo("P", 0, 64, 4))


@st.composite
def _bounded(draw: st.DrawFn) -> tuple[dict[str, int], Bounds]:
    """Sizes, and a header that they keep."""
    sizes = draw(bindings())
    infos = []
    for name in NAMES:
        low = draw(st.integers(0, sizes[name]))
        high = draw(st.none() | st.integers(sizes[name], 70))
        divisors = [n for n in range(1, 8) if sizes[name] % n == 0]
        infos.append(DimInfo(name, low, high, draw(st.sampled_from(divisors))))
    return sizes, Bounds(draw(st.permutations(infos)))


@given(expressions(), expressions(), _bounded())
@settings(max_examples=80, deadline=None)
def test_no_claim_is_refuted_by_integers(
    x: Expression, y: Expression, bounded: tuple[dict[str, int], Bounds]
) -> None:
    sizes, bounds = bounded
    low, high = bounds.range(x.size)
    assert low <= x.value(sizes) <= high
    if bounds.at_least(x.size, y.size):
        assert x.value(sizes) >= y.value(sizes)
    short = bounds.shorten(x.size)
    assert evaluate_size(short, sizes) == x.value(sizes)
    assert bounds.shorten(short) == short
    assert bounds.shorten(x.size + y.size) == short + bounds.shorten(y.size)
    assert bounds.shorten(x.size * y.size) == short * bounds.shorten(y.size)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (minimum_size(P + S, 4096), "P + S"),
        (minimum_size(P + S, 128), "P + S"),
        (minimum_size(P + S, 127), "min(P + S, 127)"),
        (maximum_size(S, 1), "S"),
        (maximum_size(S - 65, P, 0), "P"),
        (minimum_size(S, 3, P + S), "min(S, 3)"),
        (minimum_size(S, S * B), "S"),
        (2 * minimum_size(S, 64) + maximum_size(0, P), "P + 2*S"),
        (ceildiv(S, 64), "1"),
        (floordiv(S, 65), "0"),
        (isqrt(S + 3), "isqrt(S + 3)"),
        (minimum_size(isqrt(S), 8), "isqrt(S)"),
        (minimum_size(isqrt(S - 2 * P), 8), "isqrt(-2*P + S)"),
        (isqrt(minimum_size(B, 3)), "1"),
        (floordiv(P, 64), "floordiv(P, 64)"),
        (ceildiv(minimum_size(S, 4096), 3), "ceildiv(S, 3)"),
        (minimum_size(floordiv(S, 2), 40), "floordiv(S, 2)"),
        (minimum_size(B, 5), "min(B, 5)"),
    ],
)
def test_sizes_become_shorter(size: Size, text: str) -> None:
    assert str(Bounds(HEADER).shorten(size)) == text


@pytest.mark.parametrize(
    ("info", "ends"),
    [
        (DimInfo("S"), (1, float("inf"))),
        (DimInfo("S", 0, 63, 4), (0, 60)),
        (DimInfo("S", 5, 63, 4), (8, 60)),
        (DimInfo("T", 5), (0, float("inf"))),
    ],
)
def test_ends_are_multiples_and_unknown_names_are_sizes(
    info: DimInfo, ends: tuple[float, float]
) -> None:
    assert Bounds([info]).range(S) == ends


def graph(body: str, x: str = "min(P + S, 4096)", outputs: str = "y") -> Module:
    """A graph with an input of length ``x`` and bounded sizes."""
    module = parse(
        f"seqmix 1 module @m {{ graph @g(%x: f32[{x}, 2], %all: bool[S, P]) "
        f"dims(S in 1..64, P in 0..64) -> ({outputs}) {{ {body} }} }}"
    )
    verify(module)
    return module


def test_sizes_of_a_graph_become_shorter_everywhere() -> None:
    module = graph(
        """
        %0 = slice(%x) {axis = 0, start = P, stop = min(P + S, 4096), step = 1}
            : f32[min(P + S, 4096) - P, 2]
        %1 = scan(%x, %0) {carries = 0, sequences = 1, axis = 1, reverse = false}
        body(%a: f32[min(P + S, 4096)], %b: f32[min(P + S, 4096) - P, 2]) {
          %2 = reshape(%b) {shape = [2, min(P + S, 4096) - P]} : f32[2, min(P + S, 4096) - P]
          return %2
        } : f32[2, 2, min(P + S, 4096) - P]
        return %1
        """
    )
    short = tighten(module)
    verify(short)
    assert "min" not in show(short)
    assert str(short.graph("g").results["y"].type) == "f32[2, 2, S]"
    assert tighten(short) is short


@pytest.mark.parametrize(
    ("op", "value", "outcome"),
    [
        ("less", 129, True),
        ("less", 128, None),
        ("less", 1, False),
        ("less_equal", 128, True),
        ("less_equal", 0, False),
        ("greater", 0, True),
        ("greater", 128, False),
        ("greater_equal", 1, True),
        ("greater_equal", 2, None),
        ("greater_equal", 129, False),
        ("equal", 129, False),
        ("equal", 5, None),
        ("not_equal", 0, True),
        ("not_equal", 7, None),
    ],
)
def test_comparisons_of_sizes_are_decided(op: str, value: int, outcome: bool | None) -> None:
    module = graph(
        f"""
        %0 = size() {{value = P + S}} : i64[]
        %1 = constant() {{value = {value}, dtype = "i64"}} : i64[]
        %2 = {op}(%0, %1) : bool[]
        return %2
        """
    )
    ops = canonicalize(module).graph("g").block.ops
    decided = [
        op.defn.attributes()["value"]
        for op in ops
        if str(op.results[0].type) == "bool[]" and op.name == "constant"
    ]
    assert decided == ([] if outcome is None else [outcome])


@pytest.mark.parametrize(
    ("op", "value", "left"),
    [
        ("minimum", 128, "size"),
        ("minimum", 1, "constant"),
        ("minimum", 64, "minimum"),
        ("maximum", 128, "constant"),
        ("maximum", 1, "size"),
        ("maximum", 2, "maximum"),
    ],
)
def test_extrema_of_sizes_are_decided(op: str, value: int, left: str) -> None:
    for operands in ("%0, %1", "%1, %0"):
        module = graph(
            f"""
            %0 = size() {{value = P + S}} : i64[]
            %1 = constant() {{value = {value}, dtype = "i64"}} : i64[]
            %2 = {op}({operands}) : i64[]
            return %2
            """
        )
        assert canonicalize(module).graph("g").block.ops[-1].name == left


def test_numbers_that_are_no_sizes_are_left_alone() -> None:
    module = graph(
        """
        %0 = constant() {value = true, dtype = "bool"} : bool[]
        %1 = equal(%0, %0) : bool[]
        %2 = constant() {value = [3], dtype = "i64"} : i64[1]
        %3 = size() {value = S} : i64[]
        %4 = less(%3, %2) : bool[1]
        %5 = less(%x, %x) : bool[min(P + S, 4097), 2]
        return %1, %4, %5
        """,
        "min(P + S, 4097)",
        "y, z, w",
    )
    kept = [op.name for op in tighten(module).graph("g").block.ops]
    assert kept == ["constant", "equal", "constant", "size", "less", "less"]


def test_a_graph_whose_shorter_sizes_do_not_fit_together_stays() -> None:
    """The slice infers ``ceildiv(S, 64)``; a reshape to its length would ask for 1."""
    module = graph(
        """
        %0 = slice(%x) {axis = 0, start = 0, stop = S, step = 64} : f32[ceildiv(S, 64), 2]
        %1 = reshape(%0) {shape = [2, ceildiv(S, 64)]} : f32[2, ceildiv(S, 64)]
        return %1
        """,
        "S",
    )
    assert tighten(module) is module


def test_what_a_fixed_size_bounds_is_decided_too() -> None:
    module = graph("%0 = neg(%x) : f32[min(P + S, 65), 2] return %0", "min(P + S, 65)")
    assert tighten(module) is module
    step = specialise(module.graph("g"), "step", {"S": 1})
    assert str(step.inputs["x"].type) == "f32[P + 1, 2]"
