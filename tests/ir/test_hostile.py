"""Texts that someone wrote to do harm: refused soon, in a message of bounded length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from seqmix_ir.dims import Size, dim, minimum_size
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.text import parse
from seqmix_ir.types import Loc
from seqmix_ir.verifier import verify

HEAD = "seqmix 1\nmodule @m {\n graph @f(%x: f32[S]) dims(S >= 1) -> (y) {\n"
TAIL = "  return %x\n }\n}\n"


def one(op: str) -> str:
    return f"{HEAD}  %q = {op}\n{TAIL}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seqmix 1\nuses neg@{'9' * 5000}\n", "expected a version number"),
        (f"seqmix {'9' * 5000}\n", "at most 19 digits"),
        (one(f"{'a' * 100_000}(%x) : f32[S]"), "unknown op 'a"),
        (one(f"neg(%{'v' * 100_000}) : f32[S]"), "%vvv"),
        (one(f"neg(%x) : f32[{', '.join(['S'] * 65)}]"), "at most 64 axes, found 65"),
        (one(f"reshape(%x) {{shape = [{', '.join(['S'] * 65)}]}} : f32[S]"), "about 65 axes"),
        (one(f"size() {{value = {'*'.join(['S'] * 300)}}} : i64[]"), "too large to be meant"),
        (one('neg(%x) : f32[S] loc("a"' + ' from "b"' * 300 + ")"), "at most 256 steps, found 301"),
        (one('weight() {key = "\\ud800", type = f32[S]} : f32[S]'), "half of a surrogate pair"),
        (one("neg(%x) : f32[S]" + "[" * 10_000), "expected"),
    ],
)
def test_a_text_that_asks_for_too_much(text: str, message: str) -> None:
    with pytest.raises(IRError) as error:
        parse(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 5000


def test_a_shape_whose_product_has_no_end() -> None:
    shape = ", ".join(f"A{i} + B{i}" for i in range(40))
    module = parse(
        one(f'weight() {{key = "w", type = f32[{shape}]}} : f32[{shape}]').replace(
            "  return", "  %r = reshape(%q) {shape = [S]} : f32[S]\n  return"
        )
    )
    with pytest.raises(IRError, match="too large to be meant"):
        verify(module)


def test_products_of_sums_end() -> None:
    factors: list[Size] = [dim(f"a{i}") + dim(f"b{i}") for i in range(40)]
    with pytest.raises(IRError, match="more than 1024 terms"):
        math.prod(factors)


def test_the_smallest_of_sizes_that_differ_by_a_number_is_found() -> None:
    S, T = dim("S"), dim("T")
    assert str(minimum_size(S + 3, T, S, S + 1, 2 * S, T + 1)) == "min(2*S, S, T)"


def test_many_locations_are_shown_without_recursion() -> None:
    loc = Loc("0")
    for i in range(1, 5000):
        loc = loc.inside(str(i))
    assert str(loc).startswith("4999, from 4998")


def test_names_of_any_length_are_compared_soon() -> None:
    assert did_you_mean("a" * 10_000, ["a" * 10_000]) == ""
    assert "'softmax'" in did_you_mean("softmx", ["softmax", "b" * 10_000])


def chain(n: int) -> str:
    ops = "".join(f"  %{i} = neg(%{i - 1 if i else 'x'}) : f32[S]\n" for i in range(n))
    return HEAD + ops + TAIL


def sizes(n: int) -> str:
    smallest = f"min({', '.join(f'a{i}' for i in range(100))})"
    return (
        HEAD + "".join(f"  %{i} = size() {{value = {smallest}}} : i64[]\n" for i in range(n)) + TAIL
    )


def problems(n: int) -> str:
    params = ", ".join(f"%p{i}: f32[-{i + 1}]" for i in range(n))
    return f"seqmix 1\nmodule @m {{\n graph @f({params}) -> (y) {{\n  return %p0\n }}\n}}\n"


@pytest.mark.full
@pytest.mark.parametrize("write", [chain, sizes, problems])
def test_the_time_grows_as_the_text_does(write: Callable[[int], str]) -> None:
    def seconds(n: int) -> float:
        text, started = write(n), time.process_time()
        with suppress(IRError):
            verify(parse(text))
        return time.process_time() - started

    seconds(50)
    least = [min(seconds(n) for _ in range(3)) for n in (250, 2000)]
    assert least[1] < 3 * 8 * least[0]
