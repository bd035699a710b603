"""Graphs that break a rule, for the verifier."""

from __future__ import annotations

from tests.golden.errors.messages import Situations

from seqmix_ir import ops, parse, verify
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.dims import dim
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.types import Loc, TensorType

__all__ = ["LAYER", "VERIFY", "F", "module_of"]

VERIFY = Situations("verify")
F = TensorType("f32", (3,))
LAYER = Loc("steps.3.branches.0.mixer (my_mixer.py:42)")


def module_of(
    params: list[Value],
    made: list[Op],
    results: list[Value],
    outputs: tuple[str, ...] = ("y",),
    dims: tuple[DimInfo, ...] = (),
) -> Module:
    block = Block(tuple(params), tuple(made), tuple(results))
    return Module("m", (Graph("forward", block, outputs, dims),))


@VERIFY
def used_before_it_is_defined() -> None:
    x, a, b = Value(F, "x"), Value(F, "a"), Value(F, "b")
    made = [Op(ops.Exp(), (b,), (a,), loc=LAYER), Op(ops.Neg(), (x,), (b,), loc=LAYER)]
    verify(module_of([x], made, [a]))


@VERIFY
def operand_from_another_graph() -> None:
    x, a = Value(F, "x"), Value(F, "a")
    verify(module_of([x], [Op(ops.Exp(), (Value(F, "stranger"),), (a,))], [a]))


@VERIFY
def body_reads_a_value_around_it() -> None:
    outer, part, y = Value(F, "outer"), Value(F, "x"), Value(F)
    xs, ys = Value(TensorType("f32", (3, 4)), "xs"), Value(TensorType("f32", (3, 4)))
    body = Block((part,), (Op(ops.Add(), (part, outer), (y,), loc=LAYER),), (y,))
    verify(module_of([xs, outer], [Op(ops.Scan(0, 1), (xs,), (ys,), body)], [ys]))


@VERIFY
def value_of_a_body_read_outside() -> None:
    body = trace_block([F], lambda b, x: b(ops.Exp(), x))
    xs, y = Value(TensorType("f32", (3, 4)), "xs"), Value(F)
    b = Builder()
    b.emit(ops.Scan(0, 1), xs, body=body)
    made = [*b.ops, Op(ops.Neg(), body.results, (y,), loc=LAYER)]
    verify(module_of([xs], made, [y]))


@VERIFY
def missing_result() -> None:
    verify(module_of([Value(F, "x")], [], [Value(F)]))


@VERIFY
def type_mismatch() -> None:
    x, y = Value(F, "x"), Value(TensorType("f16", (3,)))
    verify(module_of([x], [Op(ops.Exp(), (x,), (y,), loc=LAYER)], [y]))


@VERIFY
def operands_of_two_dtypes_after_a_decomposition() -> None:
    x, w, y = Value(F, "x"), Value(TensorType("f16", (3,)), "w"), Value(F)
    loc = LAYER.inside("attention.direct").inside("softmax.direct")
    verify(module_of([x, w], [Op(ops.Add(), (x, w), (y,), loc=loc)], [y]))


@VERIFY
def weight_of_two_types() -> None:
    first, second = F, TensorType("f16", (3,))
    graphs = []
    for name, type in (("forward", first), ("step", second)):
        b = Builder(LAYER)
        y = b(ops.Weight("norm.weight", type), hint="w")
        graphs.append(Graph(name, b.block([], [y]), ("y",)))
    verify(Module("m", tuple(graphs)))


@VERIFY
def bodies_in_bodies() -> None:
    text = """
      graph @main(%xs: f32[B, S, T]) dims(B >= 1, S >= 1, T >= 1) -> (ys) {
        %0 = scan(%xs) {carries = 0, sequences = 1} body(%x: f32[B, T]) {
          %0 = scan(%x) {carries = 0, sequences = 1} body(%e: f32[B]) {
            %0 = add(%e, %e) : f32[B, 1]
            return %0
          } : f32[B, T]
          %1 = neg(%0) : f64[B, T]
          return %1
        } : f32[B, S, T]
        return %0
      }"""
    verify(parse("seqmix 1 module @m {" + text + "}"))


@VERIFY
def several_at_once() -> None:
    x, y, z = Value(F, "x"), Value(F), Value(TensorType("f32", (dim("S"),)))
    made = [
        Op(ops.Softmax(4), (x,), (y,), loc=LAYER),
        Op(ops.Neg(), (y, x), (z,), loc=Loc("head (model.py:7)")),
    ]
    verify(module_of([x], made, [z, Value(F)], ("y", "y"), (DimInfo("B", 3, 2),)))


def chain(length: int, wrong: tuple[int, ...]) -> Module:
    """Thousands of ops, some of which give the wrong type."""
    values = [Value(F, "x")]
    made = []
    for i in range(length):
        values.append(Value(TensorType("f64", (3,)) if i in wrong else F))
        made.append(Op(ops.Exp(), (values[i] if i - 1 not in wrong else values[0],), (values[-1],)))
    return module_of(values[:1], made, values[-1:])


@VERIFY
def two_of_five_thousand_ops() -> None:
    verify(chain(5000, (1000, 4990)))


@VERIFY
def every_op_is_wrong() -> None:
    x = Value(F, "x")
    made = [Op(ops.Exp(), (x,), (Value(TensorType("f64", (3,))),)) for _ in range(3000)]
    verify(module_of([x], made, [made[-1].results[0]]))


@VERIFY
def wrong_op_in_a_long_body() -> None:
    inner = chain(800, (400,)).graphs[0].block
    xs, ys = Value(TensorType("f32", (3, 4)), "xs"), Value(TensorType("f32", (3, 4)))
    verify(module_of([xs], [Op(ops.Scan(0, 1), (xs,), (ys,), inner)], [ys]))


@VERIFY
def hundreds_of_inputs_and_a_large_constant() -> None:
    inputs = [Value(F, f"state.{i}.key") for i in range(300)]
    table = ops.Constant(tuple(float(i) for i in range(4096)), "f32")
    y = Value(F)
    names = tuple(f"state.{i}.key" for i in range(300))
    verify(module_of(inputs, [Op(table, (), (y,))], [*inputs[1:], y], names))
