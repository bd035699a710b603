"""Legalization: exactly what is refused is decomposed, and everything is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pytest
from tests.ir.op_samples import SAMPLES, SIZES, Sample

from seqmix_ir import Interpreter, IRError, ops, same, show, verify
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Decomposition, OpDef, op
from seqmix_ir.graph import Graph, Module, Op, Value
from seqmix_ir.passes import STEPS, Impossible, explain, legalize, lower
from seqmix_ir.types import Loc, TensorType

F = TensorType("f32", (2, 3))
Refuse: TypeAlias = "Callable[[Op], str | None]"


@dataclass
class Only:
    """A backend that refuses the ops named, or those that a function refuses."""

    refused: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    also: Refuse = field(default=lambda op: None)
    name: str = "toy"

    def supports(self, op: Op) -> str | None:
        return f"no {op.name} here" if op.name in self.refused else self.also(op)

    def prefer(self, op: Op) -> tuple[str, ...]:
        return self.styles


@op
class Double(OpDef):
    """Two ways to write ``2 * x``."""

    name = "test.double"
    operands = ("x",)
    results = ("y",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "sum": lambda b, op: (b(ops.Add(), *op.values, *op.values),),
            "minus": lambda b, op: (b(ops.Sub(), *op.values, b(ops.Neg(), *op.values)),),
        }


@op
class Loop(OpDef):
    """Decomposes into itself."""

    name = "test.loop"
    operands = ("x",)
    results = ("y",)
    turn: int = 0
    grows: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        after = Loop(self.turn + 1 if self.grows else 1 - self.turn, self.grows)
        return {"again": lambda b, op: (b(after, b(after, *op.values)),)}


@op
class Wrong(OpDef):
    """Its decompositions do not give what it gives."""

    name = "test.wrong"
    operands = ("x",)
    results = ("y",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "type": lambda b, op: (b(ops.Unsqueeze((0,)), *op.values),),
            "count": lambda b, op: (),
            "misfit": lambda b, op: (b(ops.Softmax(9), *op.values),),
        }


def _module(*defns: OpDef, loc: str = "net.py:3") -> Module:
    x = Value(F, "x")
    b = Builder(Loc(loc))
    y = x
    for defn in defns:
        y = b(defn, y)
    return Module("m", (Graph("main", b.block([x], [y]), ("y",)),))


def _scan_of(defn: OpDef) -> Module:
    body = trace_block([F], lambda b, x: b(defn, x), "x", Loc("cell.py:5"))
    x = Value(TensorType("f32", (2, 4, 3)), "x")
    b = Builder(Loc("net.py:8"))
    (y,) = b.emit(ops.Scan(0, 1), x, body=body)
    return Module("m", (Graph("main", b.block([x], [y]), ("y",)),))


def _names(module: Module) -> list[str]:
    return [op.name for graph in module.graphs for op in graph.block.walk()]


def test_what_is_supported_stays() -> None:
    module = _module(ops.Exp(), Double(), ops.Exp())
    legal, record = legalize(module, Only())
    assert same(legal, module)
    assert record.native == {"exp": 2, "test.double": 1}
    assert record.decomposed == {}
    assert record.impossible == []


@pytest.mark.parametrize(
    ("styles", "names"),
    [
        ((), ["exp", "add"]),
        (("minus",), ["exp", "neg", "sub"]),
        (("unheard", "minus", "sum"), ["exp", "neg", "sub"]),
        (("unheard",), ["exp", "add"]),
    ],
)
def test_the_preferred_style_is_taken_else_the_first(
    styles: tuple[str, ...], names: list[str]
) -> None:
    legal, record = legalize(_module(ops.Exp(), Double()), Only(("test.double",), styles))
    assert _names(legal) == names
    style = "minus" if "minus" in styles else "sum"
    assert record.decomposed == {"test.double": f"{style}: no test.double here"}
    assert record.native["exp"] == 1


def test_decomposition_goes_on_in_what_was_made() -> None:
    legal, record = legalize(_module(ops.Silu()), Only(("silu", "sigmoid")))
    assert not {"silu", "sigmoid"} & set(_names(legal))
    assert set(record.decomposed) == {"silu", "sigmoid"}
    made = [str(op.loc) for op in legal.graphs[0].block.ops if ", from silu." in str(op.loc)]
    assert made
    assert all(text.endswith(", from net.py:3") for text in made)


def test_bodies_are_legalized() -> None:
    legal, record = legalize(_scan_of(Double()), Only(("test.double",)))
    verify(legal)
    assert _names(legal) == ["scan", "add"]
    assert record.native == {"scan": 1, "add": 1}


def test_a_body_that_two_ops_share_is_decomposed_once_and_counted_twice() -> None:
    body = trace_block([F], lambda b, x: b(ops.Exp(), b(Double(), x)))
    x = Value(TensorType("f32", (2, 4, 3)), "x")
    b = Builder()
    (y,) = b.emit(ops.Scan(0, 1), *b.emit(ops.Scan(0, 1), x, body=body), body=body)
    module = Module("m", (Graph("main", b.block([x], [y]), ("y",)),))
    legal, record = legalize(module, Only(("test.double",)))
    verify(legal)
    assert record.native == {"scan": 2, "exp": 2, "add": 2}
    first, second = legal.graphs[0].block.ops
    assert first.body is second.body


def test_locations_tell_the_whole_way() -> None:
    (add,) = legalize(_module(Double()), Only(("test.double",)))[0].graphs[0].block.ops
    assert str(add.loc) == "test.double.sum, from net.py:3"
    (scan,) = legalize(_scan_of(Double()), Only(("test.double",)))[0].graphs[0].block.ops
    assert scan.body is not None
    assert str(scan.body.ops[0].loc) == "test.double.sum, from cell.py:5"


def test_only_the_applications_that_are_refused_are_decomposed() -> None:
    x, w = Value(F, "x"), Value(TensorType("f32", (3,)), "w")
    b = Builder()
    plain = b(ops.RmsNorm(1e-5), x, None)
    y = b(ops.RmsNorm(1e-5), plain, w)
    module = Module("m", (Graph("main", b.block([x, w], [y]), ("y",)),))

    def refuse(op: Op) -> str | None:
        bare = op.name == "rms_norm" and op.operands[1] is None
        return "needs a weight" if bare else None

    legal, record = legalize(module, Only(also=refuse))
    assert _names(legal).count("rms_norm") == 1
    assert record.native["rms_norm"] == 1
    assert record.decomposed["rms_norm"].endswith(": needs a weight")


def test_what_is_impossible_is_an_error_with_everything_in_it() -> None:
    module = _module(ops.Exp(), ops.Neg(), ops.Exp())
    with pytest.raises(IRError) as caught:
        legalize(module, Only(("exp",)))
    assert str(caught.value) == (
        "net.py:3: backend 'toy' cannot run 'exp': no exp here, and it has no decomposition "
        "(1 more such ops; explain() lists them)"
    )


def test_an_impossible_op_inside_a_decomposition_names_its_origin() -> None:
    with pytest.raises(IRError, match=r"^test\.double\.sum, from net\.py:3: .*'add': no add here"):
        legalize(_module(Double()), Only(("test.double", "add")))


def test_explain_lists_and_does_not_raise() -> None:
    record = explain(_module(ops.Exp(), Double(), ops.Neg()), Only(("exp", "test.double")))
    missing = "no exp here, and it has no decomposition"
    assert record.impossible == [Impossible("exp", "net.py:3", missing)]
    assert record.decomposed == {"test.double": "sum: no test.double here"}
    assert record.native == {"add": 1, "neg": 1}


@pytest.mark.parametrize("grows", [False, True])
def test_decompositions_that_do_not_end_are_refused_soon(grows: bool) -> None:
    """Each application becomes two: following them all would take 2**16 steps."""
    module, refuse = _module(Loop(0, grows)), Only(("test.loop",))
    with pytest.raises(IRError, match="its decomposition does not come to an end"):
        legalize(module, refuse)
    assert 0 < len(explain(module, refuse).impossible) < 40


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ("type", r"'type' of 'test\.wrong' gives \(f32\[1, 2, 3\]\), expected \(f32\[2, 3\]\)"),
        ("count", r"'count' of 'test\.wrong' gives \(\), expected \(f32\[2, 3\]\)"),
        ("misfit", r"test\.wrong\.misfit, from net\.py:3: 'softmax' does not accept"),
    ],
)
def test_decompositions_that_are_wrong_are_reported(style: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        legalize(_module(Wrong()), Only(("test.wrong",), (style,)))


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.defn.decompositions() or s.body], ids=str
)
def test_the_whole_way_keeps_what_is_computed(sample: Sample) -> None:
    def refuse(op: Op) -> str | None:
        # Other applications of the op may well be what it is written with.
        same = (repr(op.defn), op.types) == (repr(sample.defn), sample.types)
        return "not this one" if same and sample.defn.decompositions() else None

    module = sample.module()
    legal, record = lower(module, Only(also=refuse), verify_each=True)
    assert all(refuse(op) is None for op in legal.graphs[0].block.walk())
    assert set(record.decomposed) <= {sample.defn.name}
    assert sum(record.native.values()) == len(_names(legal))
    for sizes in SIZES[:2]:
        inputs = sample.inputs(sizes)
        expected = Interpreter(module, {}, judge=True).run("main", inputs)
        found = Interpreter(legal, {}, judge=True).run("main", inputs)
        for key, array in expected.items():
            np.testing.assert_allclose(found[key], array, rtol=1e-6, atol=1e-6)


class TestLower:
    def test_the_steps_are_watched_in_order_and_end_with_the_result(self) -> None:
        heard: dict[str, Module] = {}
        module = _module(ops.Neg(), ops.Neg(), Double(), Double())
        legal, _ = lower(module, Only(("test.double",)), watch=heard.__setitem__)
        assert tuple(heard) == STEPS
        assert heard["captured"] is module
        assert _names(heard["canonicalized"]) == ["test.double", "test.double"]
        assert heard["legalized"] is legal
        assert _names(legal) == ["add", "add"]

    def test_broken_modules_are_refused_at_the_door(self) -> None:
        x, y = Value(F, "x"), Value(TensorType("f32", (7,)))
        made = Op(ops.Neg(), (x,), (y,))
        b = Builder()
        b.append(made)
        module = Module("m", (Graph("main", b.block([x], [y]), ("y",)),))
        with pytest.raises(IRError, match=r"\^ results are \(f32\[7\]\)"):
            lower(module, Only())

    def test_verify_each_names_the_step_that_broke_the_module(self) -> None:
        stray = Value(F, "stray")

        def rule(b: Builder, op: Op) -> tuple[Value, ...] | None:
            broken = op.operands == (stray,)
            return None if broken else (b(ops.Neg(), stray),)

        module = _module(ops.Exp())
        heard: list[str] = []
        with pytest.raises(IRError, match="is not defined before this op"):
            lower(module, Only(), [rule], watch=lambda n, _: heard.append(n), verify_each=True)
        assert heard == ["captured"]

    def test_rules_never_join_what_the_backend_needs_apart(self) -> None:
        """A backend with transposes of two axes only, and an op that is written with two."""

        @op
        class Turn(OpDef):
            name = "test.turn"
            operands = ("x",)
            results = ("y",)

            def infer(self, x: TensorType) -> tuple[TensorType, ...]:
                return (x.with_shape((*x.shape[1:], x.shape[0])),)

            def decompositions(self) -> Mapping[str, Decomposition]:
                first, second = ops.Transpose((1, 0, 2)), ops.Transpose((0, 2, 1))
                return {"swaps": lambda b, op: (b(second, b(first, *op.values)),)}

        def refuse(op: Op) -> str | None:
            if not isinstance(op.defn, ops.Transpose):
                return None
            moved = sum(axis != i for i, axis in enumerate(op.defn.perm))
            return None if moved == 2 else "swaps two axes only"

        x = Value(TensorType("f32", (2, 3, 4)), "x")
        b = Builder()
        module = Module("m", (Graph("main", b.block([x], [b(Turn(), x)]), ("y",)),))
        legality = Only(("test.turn",), also=refuse)
        legal, record = lower(module, legality, verify_each=True)
        assert record.native == {"transpose": 2}, show(legal)
        assert all(legality.supports(op) is None for op in legal.graphs[0].block.walk())
