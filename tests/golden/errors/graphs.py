"""Graphs that cannot be built, lowered for a backend, or run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tests.golden.errors.messages import Situations
from tests.golden.errors.verifier import LAYER, F, module_of

from seqmix_ir import Interpreter, default_table, ops, parse
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array, Decomposition, OpDef, op
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Module, Op, Value
from seqmix_ir.passes import legalize
from seqmix_ir.types import Loc, TensorType

__all__ = ["BUILD", "LEGALIZE", "RUN"]

BUILD, LEGALIZE, RUN = Situations("builder"), Situations("legalize"), Situations("run")


@op
class Mixer(OpDef):
    """Decomposes into a :class:`Kernel`, and that into an exponential."""

    name = "my.mixer"
    operands = ("x",)
    results = ("y",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"chunkwise": lambda b, op: (b(Kernel(), *op.values),)}


@op
class Kernel(Mixer):
    name = "my.kernel"

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": lambda b, op: (b(ops.Exp(), *op.values),)}


@op
class Endless(Mixer):
    name = "my.endless"

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"again": lambda b, op: (b(Endless(), *op.values),)}


@op
class Wrong(Mixer):
    name = "my.wrong"

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": lambda b, op: (b(ops.Cast("f16"), *op.values),)}


class Weak:
    """A backend without most ops."""

    name = "weak"

    def supports(self, op: Op) -> str | None:
        return None if op.name in ("scan", "cast") else f"no kernel for {op.types[0]}"

    def prefer(self, op: Op) -> tuple[str, ...]:
        return ()


def made_of(*defns: OpDef, loc: Loc = LAYER) -> Module:
    x = Value(F, "x")
    b = Builder(loc)
    y = x
    for defn in defns:
        y = b(defn, y)
    return module_of([x], list(b.ops), [y])


@LEGALIZE
def impossible_behind_two_decompositions() -> None:
    legalize(made_of(Mixer()), Weak())


@LEGALIZE
def several_impossible_ops() -> None:
    legalize(made_of(Mixer(), ops.Exp(), ops.Neg()), Weak())


@LEGALIZE
def decomposition_without_an_end() -> None:
    legalize(made_of(Endless()), Weak())


@LEGALIZE
def decomposition_of_another_type() -> None:
    legalize(made_of(Wrong()), Weak())


GRAPH = parse(
    """
seqmix 1
module @m {
  graph @forward(%x: f32[B, S, 4], %past: f32[B, P, 4], %joined: f32[B, P + S, 4])
      dims(B in 1..8, S >= 1 multiple of 2, P >= 0) -> (y) {
    %w = weight() {key = "scale", type = f32[4]} : f32[4]
    %y = mul(%x, %w) : f32[B, S, 4]
    return %y
  }
}"""
)
WEIGHTS = {"scale": np.ones(4, np.float32)}


def run(weights: Mapping[str, Array] = WEIGHTS, graph: str = "forward", **changes: object) -> None:
    shapes = {"x": (2, 4, 4), "past": (2, 3, 4), "joined": (2, 7, 4)}
    inputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    given = {k: v for k, v in {**inputs, **changes}.items() if v is not None}
    Interpreter(GRAPH, weights).run(graph, given)


def zeros(*shape: int, dtype: type = np.float32) -> Array:
    return np.zeros(shape, dtype)


@RUN
def axis_of_an_input() -> None:
    run(joined=zeros(2, 9, 4))


@RUN
def fixed_axis_of_an_input() -> None:
    run(x=zeros(2, 4, 5))


@RUN
def two_inputs_disagree() -> None:
    run(past=zeros(3, 3, 4))


@RUN
def rank_of_an_input() -> None:
    run(x=zeros(2, 4))


@RUN
def size_out_of_bounds() -> None:
    run(x=zeros(9, 4, 4), past=zeros(9, 3, 4), joined=zeros(9, 7, 4))


@RUN
def size_that_is_no_multiple() -> None:
    run(x=zeros(2, 3, 4), joined=zeros(2, 6, 4))


@RUN
def size_that_no_input_tells() -> None:
    text = "seqmix 1 module @m { graph @g(%x: f32[S*T]) dims(S >= 1, T >= 1) -> (y) { return %x } }"
    Interpreter(parse(text), {}).run("g", {"x": zeros(6)})


@RUN
def dtype_of_an_input() -> None:
    run(x=zeros(2, 4, 4, dtype=np.float64))


@RUN
def missing_input() -> None:
    run(past=None)


@RUN
def unknown_input() -> None:
    run(pasts=zeros(1))


@RUN
def unknown_graph() -> None:
    run(graph="forwards")


@RUN
def missing_weight() -> None:
    run({"scales": zeros(4)})


@RUN
def dtype_of_a_weight() -> None:
    run({"scale": zeros(4, dtype=np.float16)})


@RUN
def shape_of_a_weight() -> None:
    run({"scale": zeros(5)})


def looped(defn: OpDef, *more: TensorType) -> Module:
    """A scan over the rows of a table whose body applies an op."""
    types = [F, *more]
    body = trace_block(types, lambda b, *v: b(defn, *v), loc=Loc("cell (my_cell.py:9)"))
    inputs = [
        Value(TensorType("f32", (2, 3)), "xs"),
        *(Value(t, f"c{i}") for i, t in enumerate(more)),
    ]
    b = Builder(LAYER)
    (y,) = b.emit(ops.Scan(0, 1, axis=0), *inputs, body=body)
    return module_of(inputs, list(b.ops), [y])


@RUN
def index_out_of_range_in_a_scan() -> None:
    module = looped(ops.Gather(0), TensorType("i64", (2,)))
    Interpreter(module, {}).run("forward", {"xs": zeros(2, 3), "c0": np.array([0, 7])})


@op
class Leaky(Mixer):
    name = "my.leaky"

    def evaluate(self, run: object, x: Array) -> tuple[Array, ...]:
        return (x[:-1],)


@op
class Raising(Mixer):
    name = "my.raising"

    def evaluate(self, run: object, x: Array) -> tuple[Array, ...]:
        raise ZeroDivisionError("division by zero")


@RUN
def op_gives_another_shape_in_a_scan() -> None:
    Interpreter(looped(Leaky()), {}).run("forward", {"xs": zeros(2, 3)})


@RUN
def op_raises_in_a_scan() -> None:
    Interpreter(looped(Raising()), {}).run("forward", {"xs": zeros(2, 3)})


@RUN
def scan_over_nothing() -> None:
    types = [TensorType("f32", (dim("S"), 3))]
    body = trace_block([F], lambda b, x: b(ops.Exp(), x))
    xs = Value(types[0], "xs")
    b = Builder(LAYER)
    (y,) = b.emit(ops.Scan(0, 1, axis=0), xs, body=body)
    module = module_of([xs], list(b.ops), [y], dims=(DimInfo("S", 0),))
    Interpreter(module, {}).run("forward", {"xs": zeros(0, 3)})


@BUILD
def operands_that_do_not_fit() -> None:
    Builder(LAYER)(ops.Matmul(), Value(TensorType("f32", (2, 3))), Value(TensorType("f32", (4, 5))))


@BUILD
def carry_that_changes_its_type() -> None:
    body = trace_block([F, F], lambda b, h, x: b(ops.Cast("f16"), b(ops.Add(), h, x)))
    xs = Value(TensorType("f32", (2, 3)))
    Builder(LAYER).emit(ops.Scan(1, 1, axis=0), Value(F), xs, body=body)


@BUILD
def two_classes_of_one_name() -> None:
    @op
    class Again(Mixer):
        name = "my.mixer"

    table = default_table()
    table.register(Mixer)
    table.register(Again)


@BUILD
def op_class_without_results() -> None:
    class Half(OpDef):
        name = "my.half"
        operands = ("x",)

    op(Half)
