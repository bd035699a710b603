"""Rows and groups as HTML. Everything that comes from a graph passes through :func:`escape`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from seqmix.page.listing import Listing, Row, Side
from seqmix.page.tree import Group, Item, count_ops, group_rows

__all__ = ["pane", "plural"]

_LONGEST = 90
"""Characters of attributes on a line; the details show more."""

_OPEN = 150
"""Graphs of at most so many ops start with every module open."""


def pane(side: Side, letter: str, title: str, marks: Mapping[int, str]) -> str:
    """One side of the page; ``letter`` begins the ids of its rows, ``marks`` are their badges."""
    writer = _Writer(side, letter, marks)
    graphs = "".join(map(writer.graph, side.graphs))
    return (
        f'<section class="pane" id="{letter}" aria-labelledby="{letter}-title">'
        f'<div class="head"><h2 id="{letter}-title">{escape(title)}</h2>'
        f'<span class="count">{plural(sum(1 for _ in side.ops()), "op")}</span>'
        '<span class="hits"></span>'
        '<button type="button" class="open">Open all</button>'
        '<button type="button" class="close">Close all</button></div>'
        f'<div class="scroll">{graphs or "<p>No graph.</p>"}</div></section>'
    )


def plural(count: int, noun: str) -> str:
    """``1 op``, ``2 ops``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


class _Writer:
    """Writes the rows of one side."""

    def __init__(self, side: Side, letter: str, marks: Mapping[int, str]) -> None:
        self._side = side
        self._letter = letter
        self._marks = marks
        self._all_open = sum(1 for _ in side.ops()) <= _OPEN

    def graph(self, graph: Listing) -> str:
        """A heading, the inputs, the ops by module, the outputs."""
        dims = f' <span class="dims">{escape(graph.dims)}</span>' if graph.dims else ""
        ends = [
            self._ends(what, [r for r in graph.rows if r.kind == what])
            for what in ("input", "output")
        ]
        ops = self._items(group_rows([r for r in graph.rows if r.kind == "op"]), 0)
        return f"<h3>graph {escape(graph.name)}{dims}</h3>{ends[0]}<ol>{ops}</ol>{ends[1]}"

    def _ends(self, what: str, rows: Sequence[Row]) -> str:
        lines = "".join(map(self._row, rows))
        head = f'<summary><span class="m">{what}s</span> <span class="n">{len(rows)}</span>'
        return f'<details class="ends">{head}</summary><ol>{lines}</ol></details>'

    def _items(self, items: Sequence[Item], depth: int) -> str:
        return "".join(
            self._group(item, depth) if isinstance(item, Group) else self._row(item)
            for item in items
        )

    def _group(self, group: Group, depth: int) -> str:
        opened = " open" if self._all_open or depth == 0 else ""
        return (
            f"<li><details{opened}>"
            f'<summary title="{escape(group.path)}"><span class="m">{escape(group.label)}</span> '
            f'<span class="n">{plural(count_ops(group.items), "op")}</span></summary>'
            f"<ol>{self._items(group.items, depth + 1)}</ol></details></li>"
        )

    def _row(self, row: Row) -> str:
        inside = {"input": self._input, "output": self._output, "op": self._op}[row.kind](row)
        mark = self._marks.get(row.index, "")
        kind = f"o {mark.split()[0]}" if mark else "o"
        badge = f' <em class="b">{escape(mark)}</em>' if mark else ""
        return (
            f'<li class="{escape(kind)}" id="{self._letter}{row.index}">'
            f"{inside}{badge}{self._body(row)}</li>"
        )

    def _op(self, row: Row) -> str:
        left = ", ".join(self._value(v, "d") for v in row.results)
        operands = ", ".join("none" if v is None else self._value(v, "u") for v in row.operands)
        attributes = _shortened(row.attributes)
        shown = f' <span class="a">{{{escape(attributes)}}}</span>' if attributes else ""
        return f"{left} = {_button(row.name)}({operands}){shown}{self._types(row.results)}"

    def _input(self, row: Row) -> str:
        left = ", ".join(self._value(v, "d") for v in row.results)
        return f"{left} = {_button('input')}{self._types(row.results)}"

    def _output(self, row: Row) -> str:
        (value,) = row.operands
        shown = "?" if value is None else self._value(value, "u")
        types = "" if value is None else self._types((value,))
        return f'{_button("output")} <span class="a">{escape(row.name)}</span> = {shown}{types}'

    def _body(self, row: Row) -> str:
        """The region of an op, nested; it stands in the module of the op around it."""
        if not row.body:
            return ""
        ops = plural(sum(r.kind == "op" for r in row.body), "op")
        items = self._items(group_rows(row.body, row.path), 0)
        return (
            '<details class="body" open><summary><span class="m">body</span> '
            f'<span class="n">{ops}</span></summary><ol>{items}</ol></details>'
        )

    def _types(self, values: Sequence[int]) -> str:
        types = ", ".join(self._side.types[v] for v in values)
        return f' <span class="t">: {escape(types)}</span>' if types else ""

    def _value(self, value: int, role: str) -> str:
        """A value where it is defined (``d``) or used (``u``)."""
        return f'<span class="{role}" data-v="{value}">{escape(self._side.names[value])}</span>'


def _button(name: str) -> str:
    return f'<button type="button" tabindex="-1">{escape(name)}</button>'


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
