"""The pass ``group``: meaning stays, no cycles, nothing dear twice; and the traffic it saves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends import random_primitives as primitives
from tests.ir.op_samples import B, S, f32, graph_module, i64

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import Module, Op, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.passes.group import Grouping, group
from seqmix_ir.passes.group_index import Axis, fixed, flat, of_axis, regrouped
from seqmix_ir.passes.group_traffic import traffic
from seqmix_ir.verifier import verify

ROWS = f32(B, S, 6)


def anything(op: Op) -> None:
    """A backend that generates all that can be."""


def grouped(module: Module) -> tuple[Module, Grouping]:
    found, record = group(module, anything)
    verify(found)
    return found, record


def names(module: Module) -> list[str]:
    return [op.name for op in module.graphs[0].block.ops if op.name != "weight"]


@pytest.mark.parametrize("seed", range(12))
def test_the_meaning_stays(seed: int) -> None:
    module, weights = primitives.draw(seed)
    given = primitives.inputs(2, 5)
    inputs = {name: given[name] for name in module.graphs[0].inputs}
    found, record = grouped(module)
    before = Interpreter(module, weights, judge=True).run("main", inputs)
    after = Interpreter(found, weights, judge=True).run("main", inputs)
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=1e-12, atol=1e-12)
    ops_before = sum(op.name == "tanh" for op in module.graphs[0].block.ops)
    left = sum(op.name == "tanh" for op in found.graphs[0].block.ops)
    fused = sum(fusion.ops.count("tanh") for fusion in record.fused)
    assert left + fused <= ops_before


def test_a_residual_and_its_norm_are_one_op_with_two_results() -> None:
    b, x, y = Builder(), Value(ROWS, "x"), Value(ROWS, "y")
    total = b(ops.Add(), x, y)
    normed = b(ops.RmsNorm(1e-5), total, None)
    found, record = grouped(
        graph_module(
            b,
            [x, y],
            (
                total,
                normed,
            ),
        )
    )
    assert names(found) == ["fused"]
    assert [f.ops for f in record.fused] == [("add", "rms_norm")]


def test_no_group_needs_what_depends_on_it() -> None:
    b, x = Builder(), Value(ROWS, "x")
    first = b(ops.Tanh(), b(ops.Neg(), x))
    between = b(ops.CumSum(1), first)
    found, _ = grouped(graph_module(b, [x], (b(ops.Add(), b(ops.Exp(), first), between),)))
    ops_of = [op.name for op in found.graphs[0].block.ops]
    assert ops_of.index("cumsum") > ops_of.index("fused")


def test_a_dear_op_of_few_elements_is_not_repeated_in_every_row() -> None:
    b, x, scale = Builder(), Value(ROWS, "x"), Value(f32(6), "scale")
    y = b(ops.Tanh(), b(ops.Mul(), x, b(ops.Exp(), scale)))
    found, record = grouped(graph_module(b, [x, scale], (y,)))
    assert names(found) == ["exp", "fused"]
    assert any("again and again" in reason for reason in record.left)


def test_heads_side_by_side_are_rows_of_their_own() -> None:
    b, x, gate = Builder(), Value(f32(B, S, 2, 4), "x"), Value(f32(B, S, 8), "gate")
    flat_heads = b(ops.Reshape((B, S, 8)), b(ops.LayerNorm(1e-5), x, None, None))
    found, _ = grouped(graph_module(b, [x, gate], (b(ops.Mul(), flat_heads, gate),)))
    assert names(found) == ["fused"]


def test_a_sum_over_another_axis_says_why_it_stays() -> None:
    b, x = Builder(), Value(ROWS, "x")
    y = b(ops.Reduce("sum", (1,), False), b(ops.Tanh(), b(ops.Neg(), x)))
    found, record = grouped(graph_module(b, [x], (y,)))
    assert names(found) == ["fused", "reduce"]
    assert record.left["reduce: it does not reduce the last axis alone"] == 1


def test_index_maps_in_front_go_inside() -> None:
    b, table, ids = Builder(), Value(f32(7, 6), "table"), Value(i64(B, S), "ids")
    y = b(ops.Tanh(), b(ops.Neg(), b(ops.Gather(0), table, ids)))
    found, _ = grouped(graph_module(b, [table, ids], (y,)))
    assert names(found) == ["fused"]


def test_indices_are_canonical() -> None:
    heads, width = Axis("h", 3), Axis("d", 4)
    place = flat((of_axis(heads), of_axis(width)), (3, 4))
    assert place.divided(4) == of_axis(heads)
    assert place.remainder(4) == of_axis(width)
    assert regrouped((of_axis(Axis("n", 12)),), (12,), (3, 4))[1].within(4)
    length = Axis("s", dim("S"))
    both = regrouped((of_axis(length), of_axis(width)), (dim("S"), 4), (4 * dim("S"),))
    assert both == (of_axis(length).times(4).plus(of_axis(width)),)
    assert fixed(7).divided(4) == fixed(1)


def test_traffic_counts_what_kernels_read_and_write() -> None:
    b, x, y = Builder(), Value(ROWS, "x"), Value(ROWS, "y")
    weight = b(ops.Weight("w", f32(6, 6)))
    z = b(ops.Mul(), b(ops.Silu(), b(ops.Linear(), x, weight, None)), y)
    module = graph_module(b, [x, y], (b(ops.Reshape((B, 6 * S)), z),))
    sizes, row = {"B": 2, "S": 5, "P": 0}, 2 * 5 * 6 * 4
    before, after = traffic(module, sizes), traffic(grouped(module)[0], sizes)
    assert (before.read, before.written, before.kernels) == (3 * row, 2 * row, 2)
    assert (after.read, after.written, after.kernels) == (2 * row, row, 1)


def test_traffic_of_a_lookup_is_what_is_picked() -> None:
    b, table, ids = Builder(), Value(f32(1000, 6), "table"), Value(i64(B, S), "ids")
    module = graph_module(b, [table, ids], (b(ops.Gather(0), table, ids),))
    found = traffic(module, {"B": 2, "S": 5, "P": 0})
    assert (found.read, found.written) == (10 * 6 * 4 + 10 * 8, 10 * 6 * 4)
