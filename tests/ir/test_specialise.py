"""Graphs for fixed sizes: what they compute, what is left of them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.ir.op_samples import SAMPLES, Sample
from tests.ir.random_programs import BOUND, Program, programs

import seqmix_ir
from seqmix_ir import Interpreter, IRError, Module, parse, same, show, verify
from seqmix_ir.dims import symbols_of
from seqmix_ir.graph import DimInfo, Graph
from seqmix_ir.passes import specialise

FORWARD = """seqmix 1
module @m {
  graph @forward(%x: f32[B, S, 4], %h: f32[B, 4], %past: f32[B, P, 4])
      dims(B >= 1, S in 1..64, P in 0..64) -> (y, last, seen) {
    BODY
  }
}
"""


def graph_of(*lines: str) -> Graph:
    """The graph ``forward`` with the ops of its text; the last line is the return."""
    module = parse(FORWARD.replace("BODY", "\n    ".join(lines)))
    verify(module)
    return module.graph("forward")


def step_of(*lines: str, **sizes: int) -> Graph:
    step = specialise(graph_of(*lines), "step", sizes or {"S": 1})
    verify(Module("m", (step,)))
    return step


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.block.walk()]


CELL = (
    "%0, %1 = scan(%h, %x, %h) {carries = 1, sequences = 1, axis = 1, reverse = false}",
    "body(%h0: f32[B, 4], %x0: f32[B, 4], %c: f32[B, 4]) {",
    "  %3 = add(%h0, %x0) : f32[B, 4]",
    "  %4 = mul(%3, %c) : f32[B, 4]",
    "  return %4, %3",
    "} : f32[B, 4], f32[B, S, 4]",
)


def test_a_step_graph_has_no_loop_and_its_own_name() -> None:
    step = step_of(*CELL, "return %1, %0, %past")
    text = show(Module("m", (step,)))
    assert text.partition("module")[2] == (
        " @m {\n"
        "  graph @step(%x: f32[B, 1, 4], %h: f32[B, 4], %past: f32[B, P, 4]) "
        "dims(B >= 1, P in 0..64) -> (y, last, seen) {\n"
        "    %0 = squeeze(%x) {axes = [1]} : f32[B, 4]\n"
        "    %1 = add(%h, %0) : f32[B, 4]\n"
        "    %2 = mul(%1, %h) : f32[B, 4]\n"
        "    %3 = unsqueeze(%1) {axes = [1]} : f32[B, 1, 4]\n"
        "    return %3, %2, %past\n"
        "  }\n"
        "}\n"
    )


def test_the_graph_that_it_was_made_of_stays() -> None:
    graph = graph_of(*CELL, "return %1, %0, %past")
    before = show(Module("m", (graph,)))
    step = specialise(graph, "step", {"S": 1})
    both = Module("m", (graph, step))
    verify(both)
    assert show(Module("m", (graph,))) == before
    assert same(parse(show(both)), both)


def test_without_sizes_it_is_a_renamed_canonical_form() -> None:
    graph = graph_of(*CELL, "return %1, %0, %past")
    renamed = specialise(graph, "again", {})
    assert (renamed.name, renamed.block) == ("again", graph.block)


def test_sizes_are_fixed_in_attributes_types_and_bodies() -> None:
    step = step_of(
        "%0 = expand(%h) {shape = [P + S, B, 4]} : f32[P + S, B, 4]",
        "%1 = slice(%0) {axis = 0, start = P, stop = P + S, step = 1} : f32[S, B, 4]",
        "%2 = size() {value = 2*S*P} : i64[]",
        "%3 = scan(%x, %1) {carries = 0, sequences = 1, axis = 1, reverse = false}",
        "body(%a: f32[B, 4], %b: f32[S, B, 4]) {",
        '  %4 = iota() {length = S + 2, dtype = "f32"} : f32[S + 2]',
        "  return %4",
        "} : f32[S + 2, S]",
        "return %3, %1, %2",
        S=7,
    )
    named = [v for op in step.block.walk() for v in op.results]
    assert all(symbols_of(s) <= {"B", "P"} for v in named for s in v.type.shape)
    text = show(Module("m", (step,)))
    assert "start = P, stop = P + 7" in text
    assert "value = 14*P" in text
    assert "} : f32[9, 7]" in text
    assert "f32[7, B, 4]) {" in text


TRIVIAL = {
    "cumsum": (["%0 = cumsum(%x) {axis = 1} : f32[B, S, 4]"], []),
    "cumsum from the end": (["%0 = cumsum(%x) {axis = -2, reverse = true} : f32[B, S, 4]"], []),
    "concat with an empty past": (["%0 = concat(%past, %x) {axis = 1} : f32[B, P + S, 4]"], []),
    "slice of everything": (
        ["%0 = slice(%x) {axis = 1, start = 0, stop = 1, step = 1} : f32[B, 1, 4]"],
        [],
    ),
    "slice by steps": (
        ["%0 = slice(%x) {axis = 1, start = 0, stop = S, step = 3} : f32[B, ceildiv(S, 3), 4]"],
        [],
    ),
    "last token": (
        ["%0 = slice(%x) {axis = 1, start = S - 1, stop = S, step = 1} : f32[B, 1, 4]"],
        [],
    ),
    "max": (['%0 = reduce(%x) {kind = "max", axes = [1], keepdims = true} : f32[B, 1, 4]'], []),
    "min without the axis": (
        ['%0 = reduce(%x) {kind = "min", axes = [-2], keepdims = false} : f32[B, 4]'],
        ["squeeze"],
    ),
    "sum": (
        ['%0 = reduce(%x) {kind = "sum", axes = [1], keepdims = true} : f32[B, 1, 4]'],
        ["constant", "add"],
    ),
    "reshape": (["%0 = reshape(%x) {shape = [B, S, 4]} : f32[B, S, 4]"], []),
    "reshape across": (
        [
            "%1 = reshape(%x) {shape = [B*S, 4]} : f32[B*S, 4]",
            "%0 = reshape(%1) {shape = [B, S, 4]} : f32[B, S, 4]",
        ],
        [],
    ),
    "expand": (
        [
            "%1 = unsqueeze(%h) {axes = [1]} : f32[B, 1, 4]",
            "%0 = expand(%1) {shape = [B, S, 4]} : f32[B, S, 4]",
        ],
        ["unsqueeze"],
    ),
    "gather of the only element": (
        [
            '%1 = constant() {value = 0, dtype = "i64"} : i64[]',
            "%0 = gather(%x, %1) {axis = 1} : f32[B, 4]",
        ],
        ["reshape"],
    ),
    "gather by counting": (
        [
            '%1 = iota() {length = S, dtype = "i64"} : i64[S]',
            "%0 = gather(%x, %1) {axis = 1} : f32[B, S, 4]",
        ],
        [],
    ),
    "the smaller size": (
        ["%0 = slice(%x) {axis = 1, start = 0, stop = min(S, 8), step = 1} : f32[B, min(S, 8), 4]"],
        [],
    ),
    "padding up to a multiple": (
        [
            "%0 = pad(%x) {axis = 1, before = 0, after = ceildiv(S, 1) - S, value = 0.0}"
            " : f32[B, S, 4]"
        ],
        [],
    ),
}


@pytest.mark.parametrize("name", TRIVIAL)
def test_what_is_trivial_goes(name: str) -> None:
    lines, left = TRIVIAL[name]
    assert names(step_of(*lines, "return %0, %h, %past", S=1, P=0)) == left


def test_argmax_and_an_exclusive_sum_of_one_element_are_zero() -> None:
    step = step_of(
        "%0 = cumsum(%x) {axis = 1, exclusive = true} : f32[B, S, 4]",
        "%1 = argmax(%x) {axis = 1, keepdims = false} : i64[B, 4]",
        "return %0, %1, %past",
    )
    assert names(step) == ["constant", "expand", "constant", "expand"]


def test_bodies_that_two_scans_share_are_inlined_twice() -> None:
    graph = graph_of(*CELL, "return %1, %0, %past")
    (scan,) = graph.block.ops
    b = seqmix_ir.Builder()
    b.append(scan)
    last, ys = b.emit(scan.defn, scan.results[0], *scan.operands[1:], body=scan.body)
    twice = graph.with_block(b.block(graph.block.params, [ys, last, graph.block.params[2]]))
    step = specialise(twice, "step", {"S": 1})
    verify(Module("m", (step,)))
    assert names(step).count("mul") == 2


def test_loops_in_loops_are_inlined_and_longer_ones_stay() -> None:
    inner = (
        "%0 = scan(%x, %h) {carries = 0, sequences = 1, axis = 2, reverse = true}",
        "body(%x0: f32[B, S], %h0: f32[B, 4]) {",
        "  %1 = scan(%x0, %x0) {carries = 0, sequences = 1, axis = 1, reverse = false}",
        "  body(%a: f32[B], %b: f32[B, S]) {",
        "    %2 = neg(%a) : f32[B]",
        "    return %2",
        "  } : f32[B, S]",
        "  return %1",
        "} : f32[B, S, 4]",
        "return %0, %h, %past",
    )
    assert names(step_of(*inner)) == ["scan", "squeeze", "neg", "unsqueeze"]
    assert names(step_of(*inner, S=2)) == ["scan", "scan", "neg"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"S": 1},
        pytest.param({"S": 1, "P": 0}, marks=pytest.mark.full),
        pytest.param({"B": 1, "S": 1, "P": 0}, marks=pytest.mark.full),
    ],
    ids=str,
)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_op_means_the_same_at_fixed_sizes(sample: Sample, sizes: dict[str, int]) -> None:
    module = sample.module()
    step = specialise(module.graph("main"), "step", sizes)
    small = Module("m", (step,))
    verify(small)
    assert {info.name for info in step.dims} == {"B", "S", "P"} - set(sizes)
    inputs = sample.inputs({"B": 3, "S": 1, "P": 2} | sizes)
    expected = Interpreter(module, {}).run("main", inputs)
    found = Interpreter(small, {}).run("step", inputs)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize(
    "examples", [25, pytest.param(1000, marks=pytest.mark.full)], ids=["quick", "full"]
)
def test_random_programs_mean_the_same_at_fixed_sizes(examples: int) -> None:
    def check(program: Program) -> None:
        graph = program.module.graph("main")
        for sizes in BOUND:
            for fixed in ({"S": sizes["S"]}, sizes):
                small = Module("m", (specialise(graph, "step", fixed),))
                verify(small)
                inputs, weights = program.inputs(sizes, special=True), program.weights()
                expected = Interpreter(program.module, weights, judge=True).run("main", inputs)
                found = Interpreter(small, weights, judge=True).run("step", inputs)
                for key, array in expected.items():
                    np.testing.assert_allclose(found[key], array, rtol=1e-6, atol=1e-7)

    wanted = settings(
        max_examples=examples,
        derandomize=examples < 100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    wanted(given(programs(smooth=True))(check))()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"s": 1}, r"@forward has no size 's'; its header names B, S, P"),
        ({"PS": 1}, r"@forward has no size 'PS'; did you mean 'S' or 'P'\?; its header names"),
        ({"S": 0}, r"@forward: size S is 0, expected 1 or more"),
        ({"S": 65}, r"@forward: size S is 65, expected 64 or less"),
        ({"P": 3}, r"@forward: size P is 3, expected a multiple of 2"),
        ({"S": True}, r"@forward: size S is True, expected a whole number"),
        ({"S": 1.0}, r"@forward: size S is 1\.0, expected a whole number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    graph = graph_of("return %x, %h, %past")
    dims = (*graph.dims[:2], DimInfo("P", 0, 64, 2))
    graph = Graph(graph.name, graph.block, graph.outputs, dims)
    with pytest.raises(IRError, match=message):
        specialise(graph, "step", sizes)


def test_an_op_that_refuses_a_size_says_where() -> None:
    graph = graph_of(
        "%0 = slice(%x) {axis = 1, start = 2, stop = S, step = 1} : f32[B, S - 2, 4]"
        ' loc("net.py:7")',
        "return %0, %h, %past",
    )
    with pytest.raises(IRError, match=r"net\.py:7: 'slice' does not accept .* slice 2:1 does not"):
        specialise(graph, "step", {"S": 1})


def test_it_is_a_public_name() -> None:
    assert seqmix_ir.specialise is specialise
