"""The figures of an evaluation as CSV files and as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmix.whole_file import write_whole

__all__ = ["pivot", "show_table", "write_table"]


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of equal keys as CSV, the file whole or not at all; nothing without rows."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    write_whole(path, text.getvalue())


def show_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns under their heads; the first is left-aligned, numbers to the right."""
    cells = [list(map(str, head)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def pivot(
    rows: Sequence[Mapping[str, Any]], down: str, across: str, value: str
) -> tuple[list[str], list[list[Any]]]:
    """Head and rows of a table with one row per ``down``, one column per ``across``.

    Values of the same place are averaged.
    """
    columns = sorted({row[across] for row in rows})
    lines = []
    for name in dict.fromkeys(row[down] for row in rows):
        own = [row for row in rows if row[down] == name]
        cells = ([row[value] for row in own if row[across] == column] for column in columns)
        lines.append([name, *(sum(cell) / len(cell) if cell else None for cell in cells)])
    return [down, *map(str, columns)], lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
