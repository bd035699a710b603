"""What every benchmark needs: turns, tables, peaks of memory, exponents."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqmix.bench.memory import peak
from seqmix.bench.turns import in_turn

__all__ = ["exponent", "in_turn", "peak", "read", "write"]


def write(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write the rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV that :func:`write` wrote, none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the straight line that fits the logarithms best; NaN for less than two."""
    if len(sizes) < 2:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return above / sum((a - x_mean) ** 2 for a in x)
