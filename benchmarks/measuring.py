"""What every benchmark needs: turns, tables, peaks of memory, exponents."""

from __future__ import annotations

import csv
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["exponent", "in_turn", "peak", "read", "write"]


def in_turn(
    contestants: dict[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    pause: float = 0,
) -> dict[str, list[float]]:
    """Seconds of every turn of every contestant, after two turns that do not count.

    Every other turn goes backwards, so that nobody has always the same one before it.
    ``time.process_time`` as the clock counts what the process computes: with one thread that is
    the time of a machine that does nothing else. ``pause`` seconds lie between two turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, work in list(contestants.items())[:: -1 if turn % 2 else 1]:
            time.sleep(pause)
            started = clock()
            work()
            if turn >= 2:
                seconds[name].append(clock() - started)
    return seconds


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


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the straight line that fits the logarithms best; NaN for less than two."""
    if len(sizes) < 2:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return above / sum((a - x_mean) ** 2 for a in x)
