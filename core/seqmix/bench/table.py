"""The figures as tables: cells once, for terminals, for Markdown and for the page."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from seqmix.bench.result import Case, Entry, Result, Row

__all__ = [
    "CASE_COLUMNS",
    "ENTRY_COLUMNS",
    "case_cells",
    "entry_cells",
    "how",
    "in_order",
    "markdown",
    "notes",
    "number",
    "plural",
    "ranged",
    "reasons",
    "terminal",
    "title",
]

CASE_COLUMNS = (
    "contestant", "tokens/s", "ms", "spread", "of the first", "of products", "of memory",
    "peak MiB", "logits differ",
)  # fmt: skip
"""Milliseconds are per prompt, or per token that is decoded."""

ENTRY_COLUMNS = ("contestant", "compile s", "load s", "peak MiB while compiling")

_UNITS = {"prefill": "a prompt of {} tokens", "decode": "one token behind {}"}


def title(case: Case) -> str:
    """What a case is about, in words."""
    return _UNITS[case.phase].format(case.length)


def case_cells(case: Case) -> list[tuple[str, ...]]:
    """A row per contestant, :data:`CASE_COLUMNS`; a reason takes the place of all figures."""
    first = next((row for row in case.rows if not row.reason), None)
    return [
        (row.contestant, row.reason) if row.reason or first is None else _figures(case, row, first)
        for row in case.rows
    ]


def _figures(case: Case, row: Row, first: Row) -> tuple[str, ...]:
    median = case.median(row)
    return (
        row.contestant,
        number(case.tokens_per_second(row)),
        number(median * 1e3),
        _share(case.spread(row)),
        f"{median / case.median(first):.2f}",
        _share(case.of_flops(row)),
        _share(case.of_bytes(row)),
        "" if row.peak_mib is None else f"{row.peak_mib:.0f}",
        "" if row.difference is None else f"{row.difference:.0e}",
    )


def entry_cells(entry: Entry) -> tuple[str, ...]:
    """:data:`ENTRY_COLUMNS`, or the name and a reason."""
    if entry.reason:
        return entry.name, entry.reason
    seconds = (entry.prepare_seconds, entry.load_seconds)
    peak = entry.prepare_peak_mib
    times = ("" if s is None else number(s) for s in seconds)
    return entry.name, *times, "" if peak is None else f"{peak:.0f}"


def how(result: Result) -> str:
    """In one sentence how it was measured."""
    given = result.settings
    measured = "CPU time, medians" if given.clock == "cpu" else "Medians"
    return (
        f"{measured} of {given.rounds} turns that all contestants took in one run, each in a "
        f"process of its own with {plural(given.threads, 'thread')}; "
        f"{plural(given.tokens, 'token')} per turn are decoded."
    )


def notes(result: Result) -> list[str]:
    """What a reader must know of the columns."""
    multiplier, reader = result.ceilings or ("nobody", "nothing")
    rates = [(c.flop_rate, c.byte_rate) for c in result.cases]
    flops = ranged([rate / 1e9 for rate, _ in rates])
    read = ranged([rate / 1e9 for _, rate in rates])
    return [
        "of the first: the time by that of the first row; less than 1 is faster.",
        f"of products: the multiply-adds that the model needs at least, by the rate of a large "
        f"product in the same rounds ({flops} GFLOP/s, the fastest at hand: {multiplier}).",
        f"of memory: the bytes of weights and state that must be read at least, by the rate at "
        f"which memory is read in the same rounds ({read} GB/s, by {reader}). More than 100% means "
        "that a part of them stays in the caches.",
        "compile s: from the model in torch to what runs, imports included.",
        "peak MiB: of the process during the case, with Python and all libraries.",
        "logits differ: the largest difference to the first row's, to its largest logit.",
    ]


def in_order(result: Result) -> list[Case]:
    """The cases by phase, then by length."""
    return [case for phase in _UNITS for case in result.of_phase(phase)]


def reasons(result: Result) -> dict[str, str]:
    """Why contestants failed, the first reason of each, by name."""
    found = {entry.name: entry.reason for entry in result.entries if entry.reason}
    for case in in_order(result):
        for row in case.rows:
            if row.reason:
                found.setdefault(row.contestant, f"{title(case)}: {row.reason}")
    return found


def ranged(values: list[float]) -> str:
    """The least and the most of some figures."""
    if not values:
        return "-"
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def terminal(result: Result) -> list[RenderableType]:
    """Tables for a console, each with its title."""
    found: list[RenderableType] = []
    for case in in_order(result):
        found.append(_table(title(case), CASE_COLUMNS, case_cells(case)))
    found.append(_table("before", ENTRY_COLUMNS, [entry_cells(e) for e in result.entries]))
    return found


def _table(name: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> RenderableType:
    table = Table(title=name, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for cells in rows:
        if len(cells) == 2:
            table.add_row(escape(cells[0]), "[red]failed[/]")
        else:
            table.add_row(*map(escape, cells))
    return table


def markdown(result: Result) -> str:
    """One table of all cases: milliseconds, and how much of what the machine can do."""
    names = [entry.name for entry in result.entries]
    lines = [
        f"`{result.settings.model}`, {result.parameters:,} parameters, "
        f"{result.machine['processor']}. {how(result)} In brackets: the larger share of the "
        "machine's measured product rate or memory bandwidth.",
        "",
        f"| ms per prompt or token | {' | '.join(names)} |",
        f"| --- |{' ---: |' * len(names)}",
    ]
    for case in in_order(result):
        rows = {row.contestant: row for row in case.rows}
        cells = [_markdown_cell(case, rows[name]) for name in names]
        lines.append(f"| {title(case)} | {' | '.join(cells)} |")
    lines.append(f"| {' | '.join(['compile, s', *map(_compile_cell, result.entries)])} |")
    peaks = [_peak_cell(result, name) for name in names]
    lines.append(f"| peak memory, MiB | {' | '.join(peaks)} |")
    for name, reason in reasons(result).items():
        lines += ["", f"`{name}` failed: {reason.splitlines()[0]}"]
    return "\n".join(lines) + "\n"


def _markdown_cell(case: Case, row: Row) -> str:
    if row.reason:
        return "failed"
    return f"{number(case.median(row) * 1e3)} ({_share(case.share(row))})"


def _compile_cell(entry: Entry) -> str:
    return "" if entry.prepare_seconds is None else number(entry.prepare_seconds)


def _peak_cell(result: Result, name: str) -> str:
    rows = [row for case in result.cases for row in case.rows if row.contestant == name]
    peaks = [row.peak_mib for row in rows if row.peak_mib is not None]
    return f"{max(peaks):.0f}" if peaks else ""


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if not math.isfinite(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def plural(count: int, what: str) -> str:
    """A number and its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "-"
