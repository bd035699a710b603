"""The whole result as one HTML file that needs nothing else: charts, tables, how it was measured.

Names and reasons pass through :func:`escape`; the page's policy allows its own style and no script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TypeAlias

from seqmix.bench.charts import Bar, Series, bars, lines
from seqmix.bench.result import Case, Result, Row
from seqmix.bench.table import (
    CASE_COLUMNS,
    ENTRY_COLUMNS,
    case_cells,
    entry_cells,
    how,
    in_order,
    notes,
    number,
    ranged,
    reasons,
    title,
)
from seqmix.sealed_page import asset, content_policy

__all__ = ["render_bench"]

_Value: TypeAlias = Callable[[Case, Row], float]

_PHASES = {
    "prefill": ("Reading a prompt", "tokens of the prompt"),
    "decode": ("Decoding", "tokens before"),
}


def render_bench(result: Result) -> str:
    """The page; equal results give equal text."""
    style = asset("seqmix.bench", "page.css")
    name = escape(result.settings.model)
    body = (
        f"{_head(result)}<main>{_legend(result)}{_phases(result)}{_before(result)}"
        f"{_tables(result)}{_how(result)}</main>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(style, "")}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{name}: speed</title>\n'
        f"<style>{style}</style></head>\n<body>{body}</body></html>\n"
    )


def _head(result: Result) -> str:
    """The subject and the machine, in a line of facts."""
    facts = {
        "parameters": f"{result.parameters:,}",
        "processor": result.machine["processor"],
        "threads": f"{result.settings.threads} of {result.machine['cores']} cores",
        "products": f"{ranged([c.flop_rate / 1e9 for c in result.cases])} GFLOP/s",
        "memory": f"{ranged([c.byte_rate / 1e9 for c in result.cases])} GB/s",
    }
    if result.settings.rope:
        facts["context"] = result.settings.rope
    terms = (f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return (
        f"<header><h1>{escape(result.settings.model)}</h1><dl>{''.join(terms)}</dl>"
        f"<p>{escape(how(result))}</p>{_failed(result)}</header>"
    )


def _failed(result: Result) -> str:
    """Who could not take part, and why."""
    found = reasons(result)
    if not found:
        return ""
    items = (f"<li><b>{escape(n)}</b>: {escape(reason)}</li>" for n, reason in found.items())
    return f'<div class="lost" role="alert"><p>Not measured:</p><ul>{"".join(items)}</ul></div>'


def _legend(result: Result) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="f{i % 8}" cx="6" cy="6" '
        f'r="5"/></svg>{escape(entry.name)}</li>'
        for i, entry in enumerate(result.entries)
        if not entry.reason
    )
    return f'<ul class="legend" aria-label="Contestants">{items}</ul>'


def _phases(result: Result) -> str:
    """Speed and share of the ceiling over lengths, of each phase."""
    parts = []
    for phase, (heading, x_name) in _PHASES.items():
        cases = result.of_phase(phase)
        if not cases:
            continue
        speed = _over_lengths(result, cases, lambda c, r: c.tokens_per_second(r))
        share = _over_lengths(result, cases, lambda c, r: c.share(r))
        figures = _figure("Tokens per second", lines(speed, x_name, "tokens/s"))
        figures += _figure(
            "Share of what the machine can do",
            lines(share, x_name, "of the ceiling", percent=True),
        )
        parts.append(f'<h2>{heading}</h2><div class="charts">{figures}</div>')
    return "".join(parts)


def _before(result: Result) -> str:
    """Memory of the longest cases, and compile time."""
    found = []
    for phase, (heading, _) in _PHASES.items():
        if cases := result.of_phase(phase):
            last = cases[-1]
            values = [(row.contestant, row.peak_mib) for row in last.rows if not row.reason]
            text = f"Peak memory, {title(last)} (MiB)"
            found.append(_figure(text, _bars(result, values, heading)))
    compiled = [(entry.name, entry.prepare_seconds) for entry in result.entries]
    found.append(_figure("Compile time (s)", _bars(result, compiled, "Compile time")))
    base = [entry.base_mib for entry in result.entries if entry.base_mib is not None]
    note = (
        f"<p>Of the memory, {number(max(base))} MiB are Python and torch before a model is there."
        "</p>"
        if base
        else ""
    )
    charts = "".join(found)
    return f'<h2>Memory and compile time</h2><div class="charts">{charts}</div>{note}'


def _bars(result: Result, values: Sequence[tuple[str, float | None]], label: str) -> str:
    places = {entry.name: i for i, entry in enumerate(result.entries)}
    known = [(n, v) for n, v in values if v is not None]
    return bars([Bar(n, places[n], v, number(v)) for n, v in known], label)


def _figure(caption: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>" if chart else ""


def _over_lengths(result: Result, cases: Sequence[Case], value: _Value) -> list[Series]:
    series = []
    for place, entry in enumerate(result.entries):
        points = [
            (float(case.length), value(case, row))
            for case in cases
            for row in case.rows
            if row.contestant == entry.name and not row.reason
        ]
        usable = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
        series.append(Series(entry.name, place, usable))
    return series


def _tables(result: Result) -> str:
    """Every figure of every case."""
    tables = [_table(title(case), CASE_COLUMNS, case_cells(case)) for case in in_order(result)]
    entries = [entry_cells(entry) for entry in result.entries]
    tables.append(_table("Before the first turn", ENTRY_COLUMNS, entries))
    return f"<h2>All figures</h2>{''.join(tables)}"


def _table(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = ""
    for first, *cells in rows:
        span = len(columns) - 1 if len(cells) == 1 else 0
        inner = (
            f'<td class="why" colspan="{span}">{escape(cells[0])}</td>'
            if span
            else "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        )
        body += f'<tr><th scope="row">{escape(first)}</th>{inner}</tr>'
    text = escape(name)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{text}"><table><caption>{text}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _how(result: Result) -> str:
    """What the columns mean, and what ran."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes(result))
    parts = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    given = result.settings
    return f"<h2>How it was measured</h2><ul>{items}</ul><p>{escape(parts)}; seed {given.seed}.</p>"
