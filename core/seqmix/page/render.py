"""The whole page: markup, the data that the script reads, styles and script inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from seqmix.page.kin import trace
from seqmix.page.listing import Row, Side, list_module
from seqmix.page.markup import pane
from seqmix.page.summary import Subject, head
from seqmix.sealed_page import asset, content_policy, script_data
from seqmix_ir.graph import Module, Op

__all__ = ["render"]

_HERE = "seqmix.page"
_SCRIPTS = ("rows.js", "details.js", "search.js", "page.js")

_LONGEST = 2000
"""Characters of attributes that the details show."""

_TOOLS = """\
<search><form role="search" id="search"><label for="q">Search</label>
<input id="q" type="search" autocomplete="off" spellcheck="false"
 title="all words must match; op:add finds the ops called add"
 placeholder="op, value, module or weight" aria-describedby="found">
<button type="submit" id="next">Next</button><button type="button" id="previous">Previous</button>
<output id="found" for="q"></output></form>
<p class="keys"><kbd>/</kbd> search, <kbd>↑</kbd> <kbd>↓</kbd> move, <kbd>Enter</kbd> select,
<kbd>Esc</kbd> clear</p></search>"""


def render(
    before: Module, after: Module, subject: Subject, refused: Callable[[Op], str | None]
) -> str:
    """The page; the same modules give the same text.

    ``refused`` says why the backend cannot run an op of ``after``, None if it can.
    """
    one, two = list_module(before), list_module(after)
    origins = trace(one, two)
    main = pane(one, "c", "Captured", _fates(one, two, origins))
    main += pane(two, "l", "Legalized", _problems(two, refused))
    style, script = asset(_HERE, "page.css"), "\n".join(asset(_HERE, name) for name in _SCRIPTS)
    title = escape(f"{subject.model} on {subject.backend}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{title}</title>\n'
        f"<style>{style}</style></head>\n<body>{head(subject, one, two)}\n{_TOOLS}\n"
        f"<main>{main}</main>\n"
        '<aside id="details" aria-label="Details"></aside>\n'
        f'<script type="application/json" id="data">{_data(one, two, origins)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _fates(before: Side, after: Side, origins: Mapping[int, tuple[int, ...]]) -> dict[int, str]:
    """What became of the captured ops that are not simply still there."""
    decomposed, kept = set(), set()
    for row in after.ops():
        for origin in origins.get(row.index, ()):
            kept.add(origin)
            if len(row.chain) > 1:
                decomposed.add((origin, row.chain[-2].split(".")[0]))
    fates = {}
    for row in before.ops():
        if (row.index, row.name) in decomposed:
            fates[row.index] = "decomposed"
        elif row.index not in kept:
            fates[row.index] = "gone"
    return fates


def _problems(side: Side, refused: Callable[[Op], str | None]) -> dict[int, str]:
    return {
        row.index: "impossible"
        for row in side.ops()
        if row.op is not None and refused(row.op) is not None
    }


def _data(before: Side, after: Side, origins: Mapping[int, tuple[int, ...]]) -> str:
    """What the details show, as JSON that cannot end the script element."""
    content = {
        "c": _side_data(before),
        "l": _side_data(after),
        "origins": sorted(origins.items()),
        "operands": {
            row.name: list(row.op.defn.operands)
            for side in (before, after)
            for row in side.ops()
            if row.op is not None
        },
    }
    return script_data(content, sort_keys=True)


def _side_data(side: Side) -> dict[str, Any]:
    """Types of values; chain, module and operands of rows; texts stand in tables, once each."""
    types = _Table()
    chains = _Table()
    return {
        "values": [types.number(text) for text in side.types],
        "rows": [_row_data(row, chains) for row in side.rows()],
        "types": types.items,
        "chains": chains.items,
        "attributes": {
            row.index: _cut(row.attributes) for row in side.ops() if len(row.attributes) > 90
        },
    }


def _row_data(row: Row, chains: _Table) -> list[Any]:
    return [
        chains.number([".".join(row.path), *row.chain]),
        [-1 if v is None else v for v in row.operands],
        list(row.results),
    ]


class _Table:
    """Numbers for things, in order of their first use."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, item: Any) -> int:
        key = json.dumps(item)
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append(item)
        return self._numbers[key]


def _cut(text: str) -> str:
    over = len(text) - _LONGEST
    return text if over <= 0 else f"{text[:_LONGEST]}… ({over:,} more characters)"
