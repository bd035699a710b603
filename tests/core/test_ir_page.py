"""``seqmix ir --html``: two graphs on one page, which tells the truth and runs nothing foreign."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core import tiny
from tests.core.page_reader import Page

from seqmix import registry
from seqmix.cli import invoke
from seqmix.page import Subject, lower_as_far, render
from seqmix.page.kin import trace
from seqmix.page.listing import list_module
from seqmix.page.tree import Group, count_ops, group_rows
from seqmix.storage import save_model
from seqmix_ir import Module, parse, show
from seqmix_ir.graph import Op

Capture = pytest.CaptureFixture[str]
HOSTILE = '</script><img src="https://x.test/a" onerror="alert(1)">.weight'

GRAPH = """seqmix 1
module @m {
  graph @forward(%x: f32[B, S, 4], %h: f32[B, 4]) dims(B >= 1, S >= 1) -> (y, last) {
    %w = weight() {key = KEY, type = f32[4, 4]} : f32[4, 4] loc("cell.w")
    %a = linear(%x, %w, none) : f32[B, S, 4] loc("cell.in (m.py:1)")
    %r = reshape(%a) {shape = [B, S, 4]} : f32[B, S, 4] loc("cell (m.py:2)")
    %last, %ys = scan(%h, %r) {carries = 1, sequences = 1, axis = 1} body(%c: f32[B, 4], %t: f32[B, 4]) {
      %n = add(%c, %t) : f32[B, 4] loc("cell (m.py:3)")
      %z = tanh(%n) : f32[B, 4] loc("cell (m.py:3)")
      return %z, %z
    } : f32[B, 4], f32[B, S, 4] loc("cell (m.py:4)")
    %s = silu(%ys) : f32[B, S, 4] loc("out (m.py:5)")
    return %s, %last
  }
}
"""  # noqa: E501  (the text form has one op a line)


class Legality:
    """Runs everything but the ops in ``refused``."""

    name = "picky"

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def supports(self, op: Op) -> str | None:
        return f"no <{op.name}> here" if op.name in self.refused else None

    def prefer(self, op: Op) -> tuple[str, ...]:
        return ()


def graph(key: str = "cell.w") -> Module:
    return parse(GRAPH.replace("KEY", json.dumps(key)), registry.op_table())


def page(module: Module, *refused: str) -> str:
    legality = Legality(*refused)
    lowered, record = lower_as_far(module, legality)
    subject = Subject("m <1>", "picky", "cpu", record)
    return render(module, lowered, subject, legality.supports)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "saved"
    save_model(tiny.model(blocks=[{"steps": [tiny.ATTENTION, tiny.MLP]}], name="tiny"), folder)
    return str(folder)


def test_the_command_writes_a_page_of_both_graphs(
    saved: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "out.html"
    file.write_text("old", encoding="utf-8")
    command = ["ir", saved, "--html", str(file), "-b", "reference"]
    assert invoke(command) == 0
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [file]
    text = file.read_text(encoding="utf-8")
    found = Page(text)
    assert len([i for i in found.named("attention") if i[0] == "c"]) == 1
    assert len([i for i in found.named("attention") if i[0] == "l"]) == 1
    assert "%embed.weight = weight()" in found.text["c"]
    assert ("h1", {}) in found.tags
    assert "tiny" in text.split("</h1>")[0]


def test_the_page_names_values_as_the_text_form_does() -> None:
    found = Page(page(graph()))
    lines = [line.strip() for line in show(graph()).splitlines()]
    wanted = [line for line in lines if re.match(r"%.* = \w+\(", line) and "body" not in line]
    shown = [found.text[row].removesuffix(" gone") for row in found.rows("c")]
    assert len(wanted) == 6
    assert set(wanted) <= set(shown)


def test_the_same_graphs_give_the_same_page() -> None:
    assert page(graph(), "silu", "tanh") == page(graph(), "silu", "tanh")


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ("nowhere/a.html", "there is no folder"),
        (".", "is no file; choose another name"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written(
    saved: str, tmp_path: Path, capsys: Capture, html: str, message: str
) -> None:
    arguments = ["ir", saved, "-b", "reference", "--html", str(tmp_path / html)]
    assert invoke(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_page(
    saved: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "a.html"
    file.write_text("old", encoding="utf-8")
    monkeypatch.setattr(Path, "replace", fail)
    assert invoke(["ir", saved, "-b", "reference", "--html", str(file)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_text_and_page_exclude_each_other(saved: str, tmp_path: Path, capsys: Capture) -> None:
    both = ["--html", str(tmp_path / "a.html"), "-o", str(tmp_path / "a.txt")]
    assert invoke(["ir", saved, *both]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_the_command_exits_1_and_still_writes_when_an_op_is_impossible(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = registry.get("backends", "reference")
    refused = Legality("reshape").supports
    monkeypatch.setattr(backend, "supports", lambda self, op, target: refused(op))
    file = tmp_path / "a.html"
    assert invoke(["ir", saved, "-b", "reference", "--html", str(file)]) == 1
    found = Page(file.read_text(encoding="utf-8"))
    lost = [row for row in found.rows("l") if "impossible" in found.classes(row)]
    assert lost == [i for i in found.named("reshape") if i[0] == "l"]
    assert lost


def test_a_page_needs_nothing_from_elsewhere() -> None:
    text = page(graph())
    found = Page(text)
    assert not re.search(r"https?:|url\(|@import", text)
    assert not [a for _, a in found.tags if {"src", "href", "srcset", "action"} & a.keys()]
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_hostile_names_stay_text() -> None:
    text = page(graph(HOSTILE), "silu")
    found = Page(text)
    assert HOSTILE not in text
    assert "img" not in {tag for tag, _ in found.tags}
    assert not [a for _, a in found.tags if any(key.startswith("on") for key in a)]
    assert text.count("<script") == 2
    assert "<img src=" in found.text["c"]
    data = json.loads(found.text["data"])
    assert any("</script><img src=" in step for chain in data["c"]["chains"] for step in chain)
    assert "no <silu> here" in found.text["kinds"]


def test_attributes_are_cut_but_the_details_have_more() -> None:
    values = ", ".join(str(i) for i in range(2000))
    constant = f'constant() {{value = [{values}], dtype = "i64"}}'
    module = parse(
        "seqmix 1\nmodule @m {\n  graph @g() -> (y) {\n"
        f"    %y = {constant} : i64[2000]\n    return %y\n  }}\n}}\n",
        registry.op_table(),
    )
    found = Page(page(module))
    (row,) = (i for i in found.named("constant") if i[0] == "c")
    assert len(found.text[row]) < 200
    kept = json.loads(found.text["data"])["c"]["attributes"][row[1:]]
    assert kept.endswith(" more characters)")


def test_bodies_are_nested_in_their_op_and_counted() -> None:
    found = Page(page(graph()))
    scans = found.named("scan")
    assert [i[0] for i in scans] == ["c", "l"]
    for scan in scans:
        inner = [i for i in found.text if re.fullmatch(r"[cl]\d+", i) and scan in found.inside[i]]
        assert len([i for i in inner if "= tanh(" in found.text[i]]) == 1
        assert len(inner) == 2 + 2 + 2
    assert "7 ops" in found.text["c"]


def test_what_became_of_an_op() -> None:
    module = graph()
    found = Page(page(module, "silu"))
    data = json.loads(found.text["data"])
    (silu,) = found.named("silu")
    assert "decomposed" in found.classes(silu)
    origins = {f"l{row}": [f"c{i}" for i in rows] for row, rows in data["origins"]}
    assert [origins[i] for i in found.named("sigmoid")] == [[silu]]
    gone = [row for row in found.rows("c") if "gone" in found.classes(row)]
    assert gone == [i for i in found.named("reshape") if i[0] == "c"]
    assert "silu: no <silu> here" not in found.text["c"]
    assert "no <silu> here" in found.text["kinds"]


def test_origins_survive_the_text_form() -> None:
    module = graph()
    lowered, _ = lower_as_far(module, Legality("silu"))
    again = parse(show(lowered, locs=True), registry.op_table())
    sides = [list_module(m) for m in (module, lowered, again)]
    assert trace(sides[0], sides[1]) == trace(sides[0], sides[2])


def test_an_impossible_op_stands_in_the_graph_with_its_reason() -> None:
    module = graph()
    found = Page(page(module, "tanh", "silu", "sigmoid"))
    (tanh,) = (i for i in found.named("tanh") if i[0] == "l")
    assert "impossible" in found.classes(tanh)
    alert = [a for _, a in found.tags if a.get("role") == "alert"]
    assert len(alert) == 1
    lowered, record = lower_as_far(module, Legality("tanh"))
    assert [lost.op for lost in record.impossible] == ["tanh"]
    assert record.native["tanh"] == 1
    assert lowered.graph("forward").outputs == ("y", "last")


def test_groups_follow_the_modules_and_weights_stand_where_they_are_read() -> None:
    (listing,) = list_module(graph()).graphs
    ops = [row for row in listing.rows if row.kind == "op"]
    items = group_rows(ops)
    labels = [item.label for item in items if isinstance(item, Group)]
    assert labels == ["cell", "out"]
    cell = items[0]
    assert isinstance(cell, Group)
    assert [i.label if isinstance(i, Group) else i.name for i in cell.items] == [
        "weight", "in", "reshape", "scan",
    ]  # fmt: skip
    assert count_ops(items) == 7
    moved = dataclasses.replace(ops[1], path=("a", "b", "c"))
    (group,) = group_rows([moved])
    assert isinstance(group, Group)
    assert (group.label, group.path) == ("a.b.c", "a.b.c")


def test_a_module_without_graphs_has_a_page() -> None:
    assert "No graph." in Page(page(Module("empty"))).text["c"]


def test_colours_have_contrast(style: Callable[[], list[dict[str, str]]]) -> None:
    for colours in style():
        for ink in ("text", "muted", "name", "op", "good", "warn", "bad"):
            for ground in ("back", "raised"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for ground in ("hit", "here", "kin", "chosen", "made", "used"):
            for ink in ("text", "name", "op"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


@pytest.fixture
def style() -> Callable[[], list[dict[str, str]]]:
    """The colours of the light and of the dark style."""
    from importlib.resources import files

    def read() -> list[dict[str, str]]:
        text = files("seqmix.page").joinpath("page.css").read_text(encoding="utf-8")
        light, dark = text.split("@media (prefers-color-scheme: dark)")
        pattern = r"--(\w+): (#[0-9a-f]{6})"
        return [dict(re.findall(pattern, light)), dict(re.findall(pattern, dark))]

    return read


def _contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
