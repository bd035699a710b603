"""The text form: round trips, golden texts, names, locations, fingerprints, and bad input."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import pytest
from tests.ir.golden_files import check_golden, golden_files, golden_input
from tests.ir.op_samples import SAMPLES, Sample

from seqmix_ir import IRError, default_table, fingerprint, ops, parse, same, show, verify
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef, op
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.table import OpTable
from seqmix_ir.types import Loc, TensorType

SCAN = next(s for s in SAMPLES if isinstance(s.defn, ops.Scan))


def _module(text: str, dims: str = "B >= 1, S >= 1") -> Module:
    head = f"seqmix 1\nmodule @m {{ graph @main(%x: f32[B, S]) dims({dims}) -> (y) {{\n"
    return parse(f"{head}{text}\nreturn %0 }} }}")


@pytest.mark.parametrize("path", golden_files("text"), ids=lambda p: p.stem)
def test_golden_texts_are_what_show_writes(path: Path) -> None:
    text = path.read_text()
    module = parse(text)
    assert show(module) == text
    assert same(parse(show(module, locs=True)), module)


@pytest.mark.parametrize("path", golden_files("parse_errors"), ids=lambda p: p.stem)
def test_golden_parse_errors(path: Path) -> None:
    with pytest.raises(IRError) as caught:
        parse(golden_input(path), file="model.txt")
    check_golden(path, str(caught.value))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_op_comes_back(sample: Sample) -> None:
    module = sample.module()
    again = parse(show(module))
    assert same(module, again)
    assert show(again) == show(module)
    verify(again)


@pytest.mark.parametrize(
    ("sample", "style"),
    [(s, style) for s in SAMPLES for style in s.defn.decompositions()],
    ids=str,
)
def test_every_decomposition_comes_back_with_its_locations(sample: Sample, style: str) -> None:
    module = sample.module(style)
    text = show(module, locs=True)
    again = parse(text)
    assert same(module, again)
    assert show(again, locs=True) == text


def test_the_whole_chain_of_locations_comes_back() -> None:
    loc = Loc("model.py:3", None).inside('softmax."direct"').inside("exp\n")
    x = Value(TensorType("f32", ()), "x")
    b = Builder(loc)
    y = b(ops.Neg(), x)
    module = Module("m", (Graph("main", b.block([x], [y]), ("y",)),))
    assert parse(show(module, locs=True)).graphs[0].block.ops[0].loc == loc
    assert "model.py" not in show(module)


def test_locations_do_not_change_the_fingerprint_and_attributes_do() -> None:
    modules = [
        _module(f"%0 = softmax(%x) {{axis = {axis}}} : f32[B, S] {loc}")
        for axis, loc in ((1, ""), (1, 'loc("a.py:1")'), (0, ""))
    ]
    plain, located, other = map(fingerprint, modules)
    assert plain == located != other
    assert len(plain) == 64
    assert int(plain, 16) >= 0


def test_attributes_left_out_take_their_defaults_and_are_printed() -> None:
    text = show(_module("%0 = softmax(%x) {axis = 1} : f32[B, S]"))
    assert 'softmax(%x) {axis = 1, accumulate = "f32"}' in text


def test_whole_numbers_may_stand_for_floats() -> None:
    (made,) = _module("%0 = clip_gradient(%x) {limit = 10} : f32[B, S]").graphs[0].block.ops
    assert repr(made.defn.attributes()["limit"]) == "10.0"


@pytest.mark.parametrize("size", ["3", "S", "2*B*S - 1", "min(P, 7)"])
def test_size_attributes_come_back_as_numbers_or_sizes(size: str) -> None:
    module = _module(f"%0 = iota() {{length = {size}}} : i64[{size}]")
    (made,) = module.graphs[0].block.ops
    assert made.results[0].type.shape == (made.defn.attributes()["length"],)
    assert f"length = {size}," in show(module)


def test_hints_that_are_no_words_become_numbers_and_twins_stay_apart() -> None:
    x = Value(TensorType("f32", ()), "x")
    b = Builder()
    value = x
    for hint in ("a b", "x", "h", "h", "%", "3", "é"):
        value = b(ops.Neg(), value, hint=hint)
    module = Module("m", (Graph("main", b.block([x], [value]), ("y",)),))
    again = parse(show(module))
    assert same(module, again)
    assert [o.results[0].hint for o in again.graphs[0].block.ops] == ["", "", "h", "", "", "", ""]


@pytest.mark.parametrize("name", ["", "a b", "0", "12", "0a", "x.", "return", 'q"\\', "é🎈", "a-b"])
def test_any_name_of_an_input_output_graph_or_module_comes_back(name: str) -> None:
    x = Value(TensorType("f32", ()), name)
    module = Module(name, (Graph(name, Block((x,), (), (x,)), (name,)),))
    assert same(parse(show(module)), module)


def test_quoted_and_plain_spelling_name_one_value() -> None:
    module = _module('%a = neg(%"x") : f32[B, S] %0 = neg(%"a") : f32[B, S]')
    first, second = module.graphs[0].block.ops
    assert first.operands == module.graphs[0].block.params
    assert second.operands == first.results


def test_comments_and_blanks_do_not_matter() -> None:
    text = show(SCAN.module())
    loose = text.replace("\n", " // note: %0 = neg(\r\n").replace(", ", "\t,\n")
    assert same(parse(loose), parse(text))


def test_plain_ops_need_no_uses_line() -> None:
    assert "uses neg@1" in show(_module("%0 = neg(%x) : f32[B, S]"))


def test_older_versions_are_read_and_newer_ones_are_not() -> None:
    @op
    class Twice(OpDef):
        name = "test.twice"
        version = 3
        operands = ("x",)
        results = ("y",)
        factor: float = 2.0
        kinds: tuple[str, ...] = ()

        def infer(self, x: TensorType) -> tuple[TensorType, ...]:
            return (x,)

    table = default_table()
    table.register(Twice)
    x = Value(TensorType("f32", ()), "x")
    b = Builder()
    y = b(Twice(0.1, ("a", "b")), x)
    text = show(Module("m", (Graph("main", b.block([x], [y]), ("y",)),)))
    assert "uses test.twice@3\n" in text
    for version in (1, 3):
        again = parse(text.replace("@3", f"@{version}"), table)
        assert again.graphs[0].block.ops[0].defn == Twice(0.1, ("a", "b"))
    with pytest.raises(IRError, match=r"'test.twice' has version 4 here, this seqmix knows 3"):
        parse(text.replace("@3", "@4"), table)
    with pytest.raises(IRError, match=r"unknown op 'test.twice'"):
        parse(text)


def test_an_op_that_refuses_its_attributes_is_reported_at_its_place() -> None:
    @op
    class Even(OpDef):
        name = "test.even"
        operands = ()
        results = ("y",)
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"{self.number} is odd")

    text = "seqmix 1\nmodule @m { graph @g() -> (y) {\n  %0 = test.even() {number = 3} : i64[]"
    with pytest.raises(IRError, match=r"t\.txt:3:8: .*3 is odd"):
        parse(text + " return %0 } }", default_table_with(Even), "t.txt")


def default_table_with(*classes: type[OpDef]) -> OpTable:
    table = default_table()
    for cls in classes:
        table.register(cls)
    return table


def test_values_that_no_attribute_may_hold_are_refused_when_printed() -> None:
    @op
    class Odd(OpDef):
        name = "test.odd"
        operands = ()
        results = ("y",)
        table: object

        def infer(self) -> tuple[TensorType, ...]:
            return (TensorType("f32", ()),)

    b = Builder()
    y = b(Odd({"a": 1}))
    module = Module("m", (Graph("main", b.block([], [y]), ("y",)),))
    with pytest.raises(IRError, match=r"an attribute holds \{'a': 1\} \(dict\)"):
        show(module)
    with pytest.raises(IRError, match=r"\{table = <\{'a': 1\}>\}[^^]*\^ 'table': an attribute"):
        verify(module)


class TestSame:
    """Structural equality sees each thing that the text says."""

    base: ClassVar[str] = show(SCAN.module())

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("module @sample", "module @other"),
            ("graph @main", "graph @other"),
            ("-> (y0, y1)", "-> (y0, y2)"),
            ("%x0", "%input"),
            ("P >= 0", "P >= 1"),
            ("carries = 1", "carries = 2"),
            ("add(%h, %x)", "add(%x, %h)"),
            ("add(%h, %x)", "sub(%h, %x)"),
            ("return %0, %1\n", "return %1, %0\n"),
            ("f32[3]", "f64[3]"),
            ("} : f32[B, 3], f32[B, S, 3]", "} : f32[B, 3], f32[B, S, 4]"),
        ],
    )
    def test_a_change_is_seen(self, old: str, new: str) -> None:
        assert old in self.base
        assert not same(parse(self.base), parse(self.base.replace(old, new)))

    def test_hints_of_inner_values_do_not_count(self) -> None:
        assert same(parse(self.base), parse(self.base.replace("%h", "%hidden")))

    def test_zero_and_minus_zero_differ_and_nan_equals_itself(self) -> None:
        zero, minus, nan = (
            _module(f'%0 = constant() {{value = {v}, dtype = "f32"}} : f32[]')
            for v in ("0.0", "-0.0", "nan")
        )
        assert not same(zero, minus)
        assert same(nan, parse(show(nan)))

    def test_absent_operands_and_values_from_elsewhere_differ(self) -> None:
        f = TensorType("f32", (3,))
        x, w, stranger = Value(f, "x"), Value(f, "w"), Value(f)
        modules = []
        for weight in (None, w, stranger):
            y = Value(f)
            made = Op(ops.RmsNorm(1e-5), (x, weight), (y,))
            block = Block((x, w), (made,), (y,))
            modules.append(Module("m", (Graph("g", block, ("y",)),)))
        for left in modules[:2]:
            for right in modules:
                assert same(left, right) == (left is right)


def _sized(size: str) -> str:
    return f"%0 = neg(%x) : f32[{size}]"


@pytest.mark.parametrize(
    "text",
    [
        _sized("*".join(["S"] * 20_000)),
        _sized("+".join(f"D{i}" for i in range(20_000))),
        _sized("*".join(["9999999999999999999"] * 1000)),
        _sized("*".join(f"ceildiv(2*D{i} + 1, 2)" for i in range(60))),
        _sized("min(" + ", ".join(f"D{i}" for i in range(20_000)) + ")"),
        _sized("ceildiv(" * 20_000),
        "%0 = constant() {value = " + "[" * 20_000,
        "%0 = scan(%x) {carries = 0, sequences = 1} body(%x: f32[B]) {\n" * 5000,
        '%0 = weight() {key = "' + "\\" * 20_000,
        "%" * 20_000,
        "%0 = neg(" * 20_000,
        "-" * 20_000,
    ],
    ids=range(12),
)
def test_bad_input_is_refused_soon(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(IRError, match=r"^<text>:\d+:\d+: ") as caught:
        _module(text)
    assert time.process_time() - begin < 5
    assert len(str(caught.value)) < 21_000


def test_every_cut_of_a_text_is_an_error_with_a_place() -> None:
    text = show(SCAN.module(), locs=True)
    for cut in range(len(text) - 2):
        with pytest.raises(IRError, match=r"^<text>:\d+:\d+: "):
            parse(text[:cut])


def test_long_modules_are_read() -> None:
    lines = [f"%h{i + 1} = neg(%h{i}) : f32[B, S]" for i in range(3000)]
    text = "\n".join(["%h0 = neg(%x) : f32[B, S]", *lines, "%0 = neg(%h9) : f32[B, S]"])
    begin = time.process_time()
    module = _module(text)
    assert same(parse(show(module)), module)
    assert time.process_time() - begin < 10


def test_long_lines_are_clipped_around_the_caret() -> None:
    for blanks in (0, 60, 500):
        with pytest.raises(IRError) as caught:
            _module(" " * blanks + "%0 = ned(%x) : f32[B, S]" + " " * 700 + "// end")
        _, shown, caret = str(caught.value).split("\n")
        assert shown[caret.index("^") :].startswith("ned(%x)")
        assert len(shown) < 220


def test_dims_of_a_graph_come_back() -> None:
    dims = (DimInfo("B", 0, 0), DimInfo("S", 3, None, 7), DimInfo("in", 1, 8, 2), DimInfo("of"))
    shape: tuple[Size, ...] = ()
    x = Value(TensorType("f32", shape), "x")
    module = Module("m", (Graph("g", Block((x,), (), (x,)), ("y",), dims),))
    assert parse(show(module)).graphs[0].dims == dims
