"""Sizes: algebra against integers, canonical form, and the text that names them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ir.random_graphs import BINDINGS, NAMES, Expression, bindings, expressions, polynomials

from seqmix_ir import IRError, parse
from seqmix_ir.dims import (
    Dim,
    Size,
    ceildiv,
    dim,
    evaluate_size,
    floordiv,
    isqrt,
    maximum_size,
    minimum_size,
    show_size,
    substitute_size,
    symbols_of,
)

B, S, P = dim("B"), dim("S"), dim("P")


def _read(text: str) -> Size:
    header = ", ".join(f"{n} >= 0" for n in (*NAMES, "T"))
    module = parse(
        f"seqmix 1 module @m {{ graph @g(%x: f32[{text}]) dims({header}) -> () {{ return }} }}"
    )
    return module.graphs[0].block.params[0].type.shape[0]


@given(expressions(), bindings())
@settings(max_examples=150, deadline=None)
def test_a_size_is_the_number_that_integers_give(e: Expression, binding: dict[str, int]) -> None:
    assert evaluate_size(e.size, binding) == e.value(binding)


@given(expressions(), bindings())
@settings(max_examples=80, deadline=None)
def test_substitution_in_two_steps_is_evaluation(e: Expression, binding: dict[str, int]) -> None:
    some = dict(list(binding.items())[:2])
    half = substitute_size(e.size, some)
    assert not symbols_of(half) & set(some)
    assert evaluate_size(half, binding) == e.value(binding)


@given(expressions(), bindings())
@settings(max_examples=80, deadline=None)
def test_names_may_become_sizes(e: Expression, binding: dict[str, int]) -> None:
    renamed = substitute_size(e.size, {"B": S + 1, "S": 2 * P, "P": B})
    meant = {"B": binding["S"] + 1, "S": 2 * binding["P"], "P": binding["B"]}
    assert evaluate_size(renamed, binding) == e.value({**binding, **meant})


@given(expressions(), expressions(), expressions())
@settings(max_examples=80, deadline=None)
def test_equal_by_the_laws_is_equal_in_form(x: Expression, y: Expression, z: Expression) -> None:
    a, b, c = x.size, y.size, z.size
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - b == -(b - a)
    assert a - a == 0
    assert a + 0 == a == a * 1
    assert a * 0 == 0
    assert hash(a + b) == hash(b + a)
    assert minimum_size(a, b, c) == minimum_size(c, minimum_size(b, a))
    assert maximum_size(a, b, a) == maximum_size(b, a)


@given(polynomials(), polynomials())
@settings(max_examples=150, deadline=None)
def test_polynomials_are_equal_where_their_values_are(x: Expression, y: Expression) -> None:
    far_apart = {"B": 10**9 + 7, "S": 10**80 + 9, "P": 10**700 + 3}
    assert (x.size == y.size) == (x.value(far_apart) == y.value(far_apart))
    assert (x.size - y.size == 0) == (x.size == y.size)


@given(expressions(), expressions(), bindings())
@settings(max_examples=80, deadline=None)
def test_sizes_that_compare_equal_have_equal_values(
    x: Expression, y: Expression, binding: dict[str, int]
) -> None:
    gap = x.size - y.size
    if isinstance(gap, int):
        assert x.value(binding) - y.value(binding) == gap
    if isinstance(x.size, int):
        assert x.value(binding) == x.size


@given(expressions(), st.sampled_from(NAMES), expressions(), bindings())
@settings(max_examples=80, deadline=None)
def test_substitution_of_any_size_is_evaluation_of_its_value(
    e: Expression, name: str, by: Expression, binding: dict[str, int]
) -> None:
    """Sizes are 0 or more; what stands for one is too."""
    size, value = maximum_size(by.size, 0), max(by.value(binding), 0)
    changed = substitute_size(e.size, {name: size})
    assert evaluate_size(changed, binding) == e.value({**binding, name: value})


@given(expressions())
@settings(max_examples=150, deadline=None)
def test_the_text_of_a_size_reads_back(e: Expression) -> None:
    assert _read(show_size(e.size)) == e.size


@given(expressions(), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_division_takes_out_what_divides(e: Expression, by: int) -> None:
    assert floordiv(e.size * by, by) == e.size == ceildiv(e.size * by, by)
    assert floordiv(e.size * by + (by - 1), by) == e.size
    assert ceildiv(e.size * by + 1, by) == e.size + 1


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (S * B * 2 + P - 1, "2*B*S + P - 1"),
        (-S, "-S"),
        (1 - S, "-S + 1"),
        (S * S, "S*S"),
        (ceildiv(S, 64) * 2, "2*ceildiv(S, 64)"),
        (ceildiv(4 * S + P + 4, 4), "S + ceildiv(P, 4) + 1"),
        (floordiv(2 * S, P), "floordiv(2*S, P)"),
        (floordiv(S + 7, 4), "floordiv(S + 3, 4) + 1"),
        (floordiv(S - 1, 4), "floordiv(S + 3, 4) - 1"),
        (ceildiv(S + 63, 64), "ceildiv(S - 1, 64) + 1"),
        (floordiv(5 * S, 4), "S + floordiv(S, 4)"),
        (floordiv(2 * S + 1, 4), "floordiv(S, 2)"),
        (ceildiv(2 * S - 1, 4), "ceildiv(S, 2)"),
        (-floordiv(-S, 64), "ceildiv(S, 64)"),
        (ceildiv(-S, 64), "-floordiv(S, 64)"),
        (floordiv(floordiv(S, 2) + 3, 5), "floordiv(S + 6, 10)"),
        (ceildiv(ceildiv(S, 8), 4), "ceildiv(S, 32)"),
        (floordiv(ceildiv(S, 8), 4), "floordiv(ceildiv(S, 8), 4)"),
        (minimum_size(minimum_size(S, 3) + 1, minimum_size(S, 3), B), "min(B, S, 3)"),
        (minimum_size(1 - maximum_size(S, P), B), "min(-P + 1, -S + 1, B)"),
        (minimum_size(P + S, 128), "min(P + S, 128)"),
        (minimum_size(isqrt(P + S - 1) + 1, S), "min(S, isqrt(P + S - 1) + 1)"),
        (minimum_size(3, minimum_size(S, 5)), "min(S, 3)"),
        (maximum_size(S + 1, S, S - 1), "S + 1"),
        (minimum_size(S + 1, S, S - 1), "S - 1"),
        (maximum_size(minimum_size(B, S), 0), "max(min(B, S), 0)"),
    ],
)
def test_how_sizes_are_written(size: Size, text: str) -> None:
    assert show_size(size) == text


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (S - S, 0),
        (S + 3 - S, 3),
        (floordiv(7, 2), 3),
        (floordiv(-7, 2), -4),
        (ceildiv(7, 2), 4),
        (ceildiv(-7, 2), -3),
        (ceildiv(S, S), 1),
        (floordiv(0, S), 0),
        (minimum_size(4, 2, 3), 2),
        (isqrt(15), 3),
        (isqrt(10**40), 10**20),
        (maximum_size(4), 4),
        (maximum_size(S + 2, S) - S, 2),
    ],
)
def test_what_is_a_number_is_an_int(size: Size, number: int) -> None:
    assert size == number
    assert type(size) is int


def test_every_symbol_is_found_inside_of_functions_too() -> None:
    size = 2 * ceildiv(S + minimum_size(P, 3), B) - dim("T")
    assert symbols_of(size) == {"S", "P", "B", "T"}
    assert symbols_of(5) == set()


def test_a_size_without_a_value_names_what_is_missing() -> None:
    with pytest.raises(IRError, match=r"size B\*S \+ P needs P, S, which no argument binds"):
        evaluate_size(B * S + P, {"B": 2})


@pytest.mark.parametrize("function", [floordiv, ceildiv])
@pytest.mark.parametrize("by", [0, -2])
def test_divisors_are_positive(function: object, by: int) -> None:
    assert callable(function)
    with pytest.raises(IRError, match="the divisor must be positive"):
        function(S, by)
    with pytest.raises(IRError, match="the divisor must be positive"):
        evaluate_size(function(S, B), {"S": 3, "B": by})


def test_there_is_no_root_below_0() -> None:
    with pytest.raises(IRError, match=r"isqrt\(-1\): there is no root of a number below 0"):
        evaluate_size(isqrt(S - 1), {"S": 0})


def test_nothing_has_no_extremum() -> None:
    with pytest.raises(IRError, match=r"min\(\) needs at least one size"):
        minimum_size()


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "é", "true", "false", "inf", "nan", "%x"])
def test_names_that_no_text_could_hold_are_refused(name: str) -> None:
    with pytest.raises(IRError, match="dimension name"):
        dim(name)


def test_bindings_cover_zero_and_odd_sizes() -> None:
    assert {0, 1, 63} <= set(BINDINGS)
    assert isinstance(B, Dim)
