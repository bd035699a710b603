"""The curve of a training: as CSV, and as a picture where matplotlib is installed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Row", "draw_curve", "series", "write_csv"]

Row: TypeAlias = Mapping[str, float | None]

MISSING = 'no picture of the curve: it needs matplotlib; pip install "seqmix[plots]"'
TRAIN, HELD_OUT = "train_bits_per_byte", "validation_bits_per_byte"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """One line per row; a loss of the held-out text that was not measured stays empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0] if rows else ())
        writer.writerows([_short(value) for value in row.values()] for row in rows)


def draw_curve(rows: Sequence[Row], path: Path, title: str) -> str | None:
    """Write a PNG; returns why there is none when matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return MISSING
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*series(rows, TRAIN), color="tab:blue", linewidth=1, label="training")
    axes.plot(*series(rows, HELD_OUT), "o-", color="tab:orange", label="held-out text")
    axes.set(xlabel="bytes read (thousands)", ylabel="bits per byte", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the version of matplotlib, so that equal curves give equal files.
    figure.savefig(path, metadata={"Software": None})
    return None


def series(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Thousands of bytes read, and a value at each, where it was measured."""
    measured = [(row["tokens"], row[key]) for row in rows]
    points = [(x / 1000, y) for x, y in measured if x is not None and y is not None]
    return [x for x, _ in points], [y for _, y in points]


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
