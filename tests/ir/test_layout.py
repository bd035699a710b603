"""One shape for sets of elementwise ops: fewer reshapes, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from seqmix_ir import Interpreter, Module, parse, same, verify
from seqmix_ir.graph import Graph
from seqmix_ir.passes import unify_layouts

TEXT = """seqmix 1
module @m {
  graph @main(%x: f32[1, 4, 3], %h: f32[4, 1, 3], %c: f32[1, 3, 4], %p: bool[1, 1], %P: f32[N])
      dims(N >= 1) -> (y, z, q) {
    BODY
  }
}
"""


def graph_of(*lines: str) -> Graph:
    module = parse(TEXT.replace("BODY", "\n    ".join(lines)))
    verify(module)
    return module.graph("main")


def unified(graph: Graph) -> Graph:
    changed = unify_layouts(graph)
    verify(Module("m", (changed,)))
    assert changed.outputs == graph.outputs
    assert [v.type for v in changed.block.results] == [v.type for v in graph.block.results]
    return changed


def reshapes(graph: Graph) -> int:
    return sum(op.name == "reshape" for op in graph.block.ops)


def run(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"N": 5}
    inputs = {
        name: rng.normal(size=[sizes.get(str(n), n) for n in v.type.shape]).astype(np.float32)
        if v.type.dtype == "f32"
        else np.ones(v.type.shape, bool)
        for name, v in graph.inputs.items()
    }
    out = Interpreter(Module("m", (graph,)), {}).run(graph.name, inputs)
    return [out[name] for name in graph.outputs]


CHAIN = (
    "%0 = reshape(%x) {shape = [4, 1, 3]} : f32[4, 1, 3]",
    "%1 = exp(%0) : f32[4, 1, 3]",
    "%2 = add(%1, %h) : f32[4, 1, 3]",
    "%3 = reshape(%p) {shape = [1, 1, 1]} : bool[1, 1, 1]",
    "%4 = where(%3, %2, %h) : f32[4, 1, 3]",
    "%5 = reshape(%4) {shape = [1, 4, 3]} : f32[1, 4, 3]",
    "%6 = mul(%5, %x) : f32[1, 4, 3]",
)


def test_a_chain_between_two_shapes_takes_one() -> None:
    before = graph_of(*CHAIN, "return %6, %x, %c")
    after = unified(before)
    assert (reshapes(before), reshapes(after)) == (3, 1)  # of h alone
    for new, old in zip(run(after), run(before), strict=True):
        np.testing.assert_array_equal(new, old)


def test_every_result_keeps_its_shape() -> None:
    graph = graph_of(*CHAIN, "return %4, %5, %6")
    for new, old in zip(run(unified(graph)), run(graph), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "lines",
    [
        # Axes that are wider than 1 change places: that is another order of the elements.
        ("%0 = reshape(%x) {shape = [1, 3, 4]} : f32[1, 3, 4]", "%1 = add(%0, %c) : f32[1, 3, 4]"),
        # A row that is repeated is no set of the same elements.
        (
            "%0 = slice(%h) {axis = 0, start = 0, stop = 1, step = 1} : f32[1, 1, 3]",
            "%1 = mul(%x, %0) : f32[1, 4, 3]",
        ),
        # A size that is not known may be anything, 1 too.
        ("%0 = reshape(%P) {shape = [N, 1]} : f32[N, 1]", "%1 = mul(%0, %P) : f32[N, N]"),
    ],
    ids=["order", "repeated", "unknown"],
)
def test_what_is_no_matter_of_ones_stays(lines: tuple[str, ...]) -> None:
    graph = graph_of(*lines, "return %1, %x, %c")
    after = unified(graph)
    assert [op.name for op in after.block.ops] == [op.name for op in graph.block.ops]
    for new, old in zip(run(after), run(graph), strict=True):
        np.testing.assert_array_equal(new, old)


def test_stored_values_and_single_elements_need_no_reshape() -> None:
    graph = graph_of(
        '%w = weight() {key = "w", type = f32[3]} : f32[3]',
        '%s = constant() {value = 2.0, dtype = "f32"} : f32[]',
        "%0 = slice(%x) {axis = 1, start = 0, stop = 1, step = 1} : f32[1, 1, 3]",
        "%1 = mul(%0, %w) : f32[1, 1, 3]",
        "%2 = add(%1, %s) : f32[1, 1, 3]",
        "return %2, %x, %c",
    )
    assert reshapes(unified(graph)) == 0


def test_a_second_run_changes_nothing() -> None:
    once = unified(graph_of(*CHAIN, "return %4, %5, %6"))
    twice = unified(once)
    assert same(Module("m", (once,)), Module("m", (twice,)))


def test_bodies_stay_as_they_are() -> None:
    graph = graph_of(
        "%0, %1 = scan(%h, %h) {carries = 1, sequences = 1, axis = 0, reverse = false}",
        "body(%a: f32[4, 1, 3], %b: f32[1, 3]) {",
        "  %2 = reshape(%a) {shape = [1, 4, 3]} : f32[1, 4, 3]",
        "  %3 = exp(%2) : f32[1, 4, 3]",
        "  %4 = reshape(%3) {shape = [4, 1, 3]} : f32[4, 1, 3]",
        "  return %4, %b",
        "} : f32[4, 1, 3], f32[4, 1, 3]",
        "return %0, %x, %c",
    )
    (scan,) = (op for op in unified(graph).block.ops if op.body is not None)
    assert [op.name for op in scan.body.ops] == ["reshape", "exp", "reshape"]
