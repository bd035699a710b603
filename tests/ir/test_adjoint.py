"""The derived adjoint: sLSTM by the paper's equations, the shape of the graphs, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ir.adjoint_cases import Loop, check_gradients, gradients
from tests.ir.adjoint_slstm import CLIP, B, D, H, S, by_the_equations, f64, slstm_loop

from seqmix_ir import ops
from seqmix_ir.adjoint import Adjoint, adjoint, hoist
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array
from seqmix_ir.dims import dim
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.ops import Scan, constant
from seqmix_ir.types import TensorType
from seqmix_ir.verifier import verify


@pytest.mark.parametrize("seed", [0, 1])
def test_an_slstm_goes_back_by_the_equations_of_the_paper(seed: int) -> None:
    loop = slstm_loop(seed)
    dy = np.random.default_rng(9).standard_normal((S, H, B, D))
    _, found = gradients(loop, [None, None, None, None, dy])
    wanted = by_the_equations(list(loop.arrays), dy)
    for place, name in {0: "h", 1: "c", 2: "n", 4: "gates", 5: "R"}.items():
        scale = np.abs(wanted[name]).max()
        assert np.abs(found[place] - wanted[name]).max() < 1e-12 * max(1, scale), name
    # A larger m is a smaller c and n (see the docstring of the plugin's op).
    c, n = loop.arrays[1], loop.arrays[2]
    assert np.abs(found[3] - c * found[1] - n * found[2]).max() < 1e-12
    assert (np.abs(wanted["h"]) >= CLIP).any(), "the clip was never reached"


def loop_of(graph: Graph) -> Op:
    """The one scan of a graph."""
    (op,) = (op for op in graph.block.ops if isinstance(op.defn, Scan))
    return op


def names(op: Op) -> set[str]:
    return {inner.name for inner in op.body.ops} if op.body is not None else set()


def test_the_loop_back_has_only_what_flows_back() -> None:
    """No function of the saved values, no sum over the steps: products, sums and one matmul."""
    derived = adjoint(slstm_loop().op)
    back = loop_of(derived.backward)
    allowed = {"add", "sub", "mul", "neg", "matmul", "concat", "maximum", "minimum", "constant"}
    assert names(back) <= allowed
    assert [op.name for op in back.body.ops].count("matmul") == 1
    assert len([op for op in back.body.ops if op.name != "constant"]) <= 28
    stacked = {r.type.shape for r in back.results[back.defn.carries :]}
    assert stacked == {(S, H, B, 4 * D)}
    outside = [op.name for op in derived.backward.block.ops if op is not back]
    assert outside.count("matmul") == 1
    assert loop_of(derived.forward).defn.reverse is False
    assert back.defn.reverse is True


def test_what_is_dear_is_saved_and_what_is_cheap_is_not() -> None:
    """The carries and the pre-activations: no exponential, no product of a matrix again."""
    derived = adjoint(slstm_loop().op)
    state = (S, H, B, D)
    assert sorted(t.shape for t in derived.saved) == sorted([state] * 4 + [(S, H, B, 4 * D)])


def test_only_what_is_asked_for_is_derived() -> None:
    loop = slstm_loop()
    derived, found = gradients(loop, [None] * 4 + [np.ones((S, H, B, D))], wrt=[5])
    _, every = gradients(loop, [None] * 4 + [np.ones((S, H, B, D))])
    assert derived.backward.outputs == ("dx5",)
    np.testing.assert_allclose(found[5], every[5], rtol=1e-12, atol=1e-14)


def gated(b: Builder, h: Value, x: Value, w_in: Value, w: Value, w_out: Value) -> tuple[Value, ...]:
    """A cell that projects in and out by itself."""
    pre = b(ops.Add(), b(ops.Linear(), x, w_in, None), b(ops.Linear(), h, w, None))
    new = b(ops.Tanh(), pre)
    return new, b(ops.Linear(), new, w_out, None)


def gated_loop(axis: int = 1, reverse: bool = False) -> Loop:
    rng = np.random.default_rng(2)
    types = [f64(3, 4), f64(3, 5), f64(4, 5), f64(4, 4), f64(6, 4)]
    body = trace_block(types, gated, "h x w_in w w_out")
    types[1] = f64(3, S, 5) if axis else f64(S, 3, 5)
    arrays = [rng.standard_normal(t.shape) for t in types]
    return Loop.of(Scan(1, 1, axis, reverse), types, body, arrays)


def test_projections_leave_the_loop_both_ways() -> None:
    derived = check_gradients(gated_loop())
    for graph in (derived.forward, derived.backward):
        products = [op.name for op in loop_of(graph).body.ops if op.name in ("linear", "matmul")]
        assert len(products) == 1
    assert [op.name for op in derived.forward.block.ops].count("linear") == 2


def test_hoisting_takes_projections_out() -> None:
    module = gated_loop().module()
    lifted = hoist(module)
    verify(lifted)
    main = lifted.graph("main")
    assert [op.name for op in loop_of(main).body.ops].count("linear") == 1
    assert [op.name for op in main.block.ops].count("linear") == 2
    assert hoist(lifted) is lifted


def test_hoisting_keeps_large_values_inside() -> None:
    """An outer product per step is not stacked: each is far larger than what it is made of."""

    def memory(b: Builder, state: Value, k: Value, v: Value, q: Value) -> tuple[Value, ...]:
        outer = b(ops.Mul(), b(ops.Unsqueeze((1,)), k), b(ops.Unsqueeze((0,)), v))
        new = b(ops.Add(), state, outer)
        return new, b(ops.Reduce("sum", (0,), False), b(ops.Mul(), new, b(ops.Unsqueeze((1,)), q)))

    row, square = f64(64), f64(64, 64)
    body = trace_block([square, row, row, row], memory, "state k v q")
    steps = f64(S, 64)
    rng = np.random.default_rng(0)
    types = [square, steps, steps, steps]
    loop = Loop.of(Scan(1, 3, 0), types, body, [rng.standard_normal(t.shape) for t in types])
    lifted = hoist(loop.module()).graph("main")
    stacked = [r.type.shape for op in lifted.block.ops for r in op.results]
    assert all(np.prod(shape) < S * 64 * 64 for shape in stacked)
    assert {"mul", "add", "reduce"} <= names(loop_of(lifted))
    derived = check_gradients(loop, tolerance=1e-5)
    assert [t.shape for t in derived.saved] == [(S, 64, 64)]


def test_a_large_gradient_that_stays_inside_is_a_running_sum() -> None:
    def best(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        first, _ = b.emit(ops.TopK(2), b(ops.Mul(), w, b(ops.Add(), h, x)))
        new = b(ops.Reduce("mean", (0, 1), False), first)
        return b(ops.Tanh(), new), new

    body = trace_block([f64(), f64(), f64(20, 90)], best, "h x w")
    rng = np.random.default_rng(1)
    types = [f64(), f64(S), f64(20, 90)]
    loop = Loop.of(Scan(1, 1, 0), types, body, [rng.standard_normal(t.shape) for t in types])
    back = loop_of(check_gradients(loop).backward)
    assert back.defn.carries == 2
    assert all(len(r.type.shape) < 3 for r in back.results)


def test_the_number_of_steps_may_be_open() -> None:
    T = dim("T")
    row = f64(3, 4)
    body = trace_block([row, f64(3, 5), f64(4, 5), f64(4, 4), f64(6, 4)], gated, "h x w_in w w_out")
    types = [row, TensorType("f64", (3, T, 5)), f64(4, 5), f64(4, 4), f64(6, 4)]
    b = Builder()
    b.emit(Scan(1, 1, 1), *map(Value, types), body=body)
    derived = adjoint(b.ops[0])
    verify(derived.module)
    fixed = gated_loop()
    dy = np.random.default_rng(3).standard_normal((3, S, 6))
    _, wanted = gradients(fixed, [None, dy])
    found = run_backward(derived, fixed, dy)
    for i, grad in wanted.items():
        np.testing.assert_allclose(found[f"dx{i}"], grad, rtol=1e-12, atol=1e-13)


def run_backward(derived: Adjoint, loop: Loop, dy: Array) -> dict[str, Array]:
    given = {f"x{i}": a for i, a in enumerate(loop.arrays)}
    interpreter = Interpreter(derived.module, {})
    after = interpreter.run("forward", given)
    more = {"dy0": np.zeros_like(after["y0"]), "dy1": dy}
    everything = {**given, **after, **more}
    inputs = {n: everything[n] for n in derived.backward.inputs}
    return interpreter.run("backward", inputs)


def test_without_carries_there_is_no_loop() -> None:
    def apart(b: Builder, x: Value, w: Value) -> tuple[Value, ...]:
        return (b(ops.Tanh(), b(ops.Matmul(), x, w)),)

    body = trace_block([f64(2, 3), f64(3, 4)], apart, "x w")
    rng = np.random.default_rng(4)
    types = [f64(2, S, 3), f64(3, 4)]
    loop = Loop.of(Scan(0, 1, 1), types, body, [rng.standard_normal(t.shape) for t in types])
    derived = check_gradients(loop)
    assert all(op.name != "scan" for graph in derived.module.graphs for op in graph.block.ops)
    lifted = hoist(loop.module())
    verify(lifted)
    assert all(op.name != "scan" for op in lifted.graph("main").block.ops)


@pytest.mark.parametrize(("axis", "reverse"), [(0, True), (1, True), (0, False)])
def test_any_axis_and_either_way(axis: int, reverse: bool) -> None:
    check_gradients(gated_loop(axis, reverse))


def scan_of(body: Block, *types: TensorType) -> Op:
    b = Builder()
    b.emit(Scan(1, 1, 0), *map(Value, types), body=body)
    return b.ops[0]


def test_refusals_name_the_op_and_its_place() -> None:
    def maximum(b: Builder, h: Value, x: Value) -> tuple[Value, ...]:
        index = constant(b, (0, 0), "i64")
        b.loc = type(b.loc)("cell (mine.py:3)")
        return b(ops.ScatterElements(0, "max"), h, index, x), x

    op = scan_of(trace_block([f64(2), f64(2)], maximum), f64(2), f64(S, 2))
    with pytest.raises(IRError, match=r"cell \(mine.py:3\).*'scatter_elements'.*'max' has no grad"):
        adjoint(op)
    with pytest.raises(IRError, match="takes a 'scan', not 'scatter_elements'"):
        adjoint(op.body.ops[-1])
    with pytest.raises(IRError, match=r"operand 7 of this scan has no gradient.*\(0, 1\)"):
        adjoint(op, [7])


def test_a_loop_inside_of_the_body_is_refused_by_name() -> None:
    def running(b: Builder, h: Value, x: Value) -> tuple[Value, ...]:
        b.loc = type(b.loc)("cell (mine.py:8)")
        return b(ops.Tanh(), b(ops.CumMax(0), b(ops.Add(), h, x))), h

    op = scan_of(trace_block([f64(2), f64(2)], running), f64(2), f64(S, 2))
    with pytest.raises(IRError, match=r"cell \(mine.py:8\): 'cummax' has no gradient.*'scan'"):
        adjoint(op)


def test_what_needs_no_gradient_needs_no_rule() -> None:
    """A running maximum of what no gradient is asked of."""

    def masked(b: Builder, h: Value, x: Value, k: Value) -> tuple[Value, ...]:
        top = b(ops.CumMax(0), k)
        return b(ops.Tanh(), b(ops.Mul(), b(ops.Add(), h, x), top)), h

    body = trace_block([f64(2), f64(2), f64(2)], masked)
    rng = np.random.default_rng(0)
    types = [f64(2), f64(S, 2), f64(2)]
    loop = Loop.of(Scan(1, 1, 0), types, body, [rng.standard_normal(t.shape) for t in types])
    _, found = gradients(loop, [np.ones(2), None], wrt=[0, 1])
    assert np.abs(found[1]).max() > 0


def test_norms_and_activations_are_written_out() -> None:
    def normed(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        y = b(ops.RmsNorm(1e-5), b(ops.Add(), h, x), w)
        z = b(ops.LayerNorm(1e-5), b(ops.Gelu(), y), w, None)
        return b(ops.Gelu("tanh"), z), z

    body = trace_block([f64(2, 3), f64(2, 3), f64(3)], normed)
    rng = np.random.default_rng(0)
    types = [f64(2, 3), f64(S, 2, 3), f64(3)]
    loop = Loop.of(Scan(1, 1, 0), types, body, [rng.standard_normal(t.shape) for t in types])
    check_gradients(loop)


def test_the_graphs_are_text_like_any_other() -> None:
    from seqmix_ir import parse, show

    derived = adjoint(slstm_loop().op)
    text = show(derived.module)
    assert show(parse(text)) == text
    assert isinstance(derived.module, Module)
