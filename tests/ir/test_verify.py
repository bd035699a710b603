"""The verifier: every problem at once, each under its op."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ir.golden_files import check_golden, golden_files, golden_input
from tests.ir.op_samples import SAMPLES, Sample

from seqmix_ir import IRError, ops, parse, verify
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import OpDef, op
from seqmix_ir.dims import dim
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.types import TensorType

F = TensorType("f32", (3,))


def _graph(
    params: list[Value],
    made: list[Op],
    results: list[Value],
    outputs: tuple[str, ...] = ("y",),
) -> Module:
    return Module("m", (Graph("g", Block(tuple(params), tuple(made), tuple(results)), outputs),))


def _problems(module: Module) -> str:
    with pytest.raises(IRError) as caught:
        verify(module)
    return str(caught.value)


@pytest.mark.parametrize("path", golden_files("verify"), ids=lambda p: p.stem)
def test_golden_reports(path: Path) -> None:
    try:
        verify(parse(golden_input(path)))
    except IRError as error:
        check_golden(path, str(error))
    else:
        check_golden(path, "valid")


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_what_the_builder_builds_is_valid(sample: Sample) -> None:
    verify(sample.module())
    for style in sample.defn.decompositions():
        verify(sample.module(style))


def test_a_value_must_be_defined_before_it_is_used() -> None:
    x, a, b = Value(F, "x"), Value(F, "a"), Value(F, "b")
    second, first = Op(ops.Neg(), (b,), (a,)), Op(ops.Neg(), (x,), (b,))
    verify(_graph([x], [first, second], [a]))
    text = _problems(_graph([x], [second, first], [a]))
    message = "operand 0 (f32[3]) is not defined before this op; 'neg' defines it further down"
    assert f"%a = neg(%?) : f32[3]\n  ^ {message}" in text
    assert "1 problem(s)" in text


def test_a_result_must_be_defined() -> None:
    text = _problems(_graph([Value(F, "x")], [], [Value(F)]))
    assert "return %?\n}\n  ^ result 0 (f32[3]) is not defined in it; nothing" in text


def test_a_value_is_defined_once() -> None:
    x, y = Value(F, "x"), Value(F)
    twice = [Op(ops.Neg(), (x,), (y,)), Op(ops.Neg(), (x,), (y,))]
    assert "a value of type f32[3] is defined twice" in _problems(_graph([x], twice, [y]))
    again = [Op(ops.Neg(), (x,), (x,))]
    assert "a value of type f32[3] is defined twice" in _problems(_graph([x], again, [x]))


def test_a_body_sees_no_outer_value() -> None:
    outer, slice_ = Value(F, "outer"), Value(F, "x")
    y = Value(F)
    body = Block((slice_,), (Op(ops.Add(), (slice_, outer), (y,)),), (y, outer))
    ys = [Value(TensorType("f32", (3, 4))), Value(TensorType("f32", (3, 4)))]
    flat = Value(TensorType("f32", (3, 4)), "xs")
    scan = Op(ops.Scan(0, 1), (flat,), tuple(ys), body)
    text = _problems(_graph([flat, outer], [scan], [ys[0]]))
    assert "      %0 = add(%x, %?)" not in text
    assert "    %0 = add(%x, %?) : f32[3]\n    ^ operand 1 (f32[3]) is not defined" in text
    assert "  ^ result 1 of the body (f32[3]) is not defined in it" in text


def test_one_body_may_serve_two_ops_but_its_values_may_not_appear_elsewhere() -> None:
    body = trace_block([F], lambda b, x: b(ops.Exp(), x))
    x = Value(TensorType("f32", (3, 4)), "x")
    b = Builder()
    (first,) = b.emit(ops.Scan(0, 1), x, body=body)
    (second,) = b.emit(ops.Scan(0, 1, reverse=True), first, body=body)
    verify(_graph([x], list(b.ops), [second]))
    stolen = Op(ops.Neg(), (x,), body.ops[0].results)
    assert "defined twice" in _problems(_graph([x], [*b.ops, stolen], [second]))


@pytest.mark.parametrize(
    ("names", "outputs", "message"),
    [
        (("", "b"), ("y",), "1 of the inputs have no name"),
        (("a", "a"), ("y",), "2 inputs are called 'a'"),
        (("a", "b"), ("",), "1 of the outputs have no name"),
        (("a", "b"), ("y", "z"), "2 outputs are named, 1 are returned"),
        (("a", "b"), (), "0 outputs are named, 1 are returned"),
    ],
)
def test_names(names: tuple[str, str], outputs: tuple[str, ...], message: str) -> None:
    params = [Value(F, name) for name in names]
    assert f"^ {message}" in _problems(_graph(params, [], [params[0]], outputs))


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (DimInfo("S", -1), "min -1 is negative"),
        (DimInfo("S", 3, 2), "max 2 is below min 3"),
        (DimInfo("S", 1, None, 0), "a multiple of 0 is no size"),
        (DimInfo(""), "1 of the dims have no name"),
    ],
)
def test_dims(info: DimInfo, message: str) -> None:
    x = Value(F, "x")
    module = Module("m", (Graph("g", Block((x,), (), (x,)), ("y",), (info,)),))
    assert message in _problems(module)


def test_symbols_of_types_and_attributes_stand_in_the_header() -> None:
    b = Builder()
    y = b(ops.SizeOf(dim("P") + dim("S")))
    module = Module("m", (Graph("g", b.block([], [y]), ("y",), (DimInfo("S"),)),))
    assert "^ 'value' = P + S uses P, missing from the dims header" in _problems(module)


def test_an_infer_that_breaks_is_one_problem_among_others() -> None:
    @op
    class Broken(OpDef):
        name = "test.broken"
        operands = ("x",)
        results = ("y",)

        def infer(self, x: TensorType) -> tuple[TensorType, ...]:
            raise KeyError("lost")

    x, y, z = Value(F, "x"), Value(F), Value(F)
    made = [Op(Broken(), (x,), (y,)), Op(ops.Neg(), (y, x), (z,))]
    text = _problems(_graph([x], made, [z]))
    assert "^ its infer raised KeyError: 'lost'" in text
    assert "^ 'neg' takes 1 operands (x), got 2" in text
    assert "2 problem(s)" in text


def test_every_broken_graph_is_shown() -> None:
    x = Value(F, "")
    graphs = tuple(Graph(n, Block((x,), (), (x,)), ("y",)) for n in ("a", "b"))
    text = _problems(Module("m", graphs))
    assert "graph 'a' has 1 problem(s)" in text
    assert "graph 'b' has 1 problem(s)" in text
