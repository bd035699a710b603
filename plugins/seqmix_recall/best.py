"""The best learning rate of every model, as the figures of the Zoology paper have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from seqmix.training.sweeps.table import Cells

__all__ = ["Best", "best_rates"]


@dataclass(frozen=True)
class Best:
    """A model on rows of one shape at its best rate: accuracies over the seeds, and its size."""

    mixer: str
    width: int
    layers: int
    length: int
    pairs: int
    rate: float
    accuracy: float
    lowest: float
    highest: float
    seeds: int
    state_bytes: int
    parameters: int

    def cells(self) -> Cells:
        """A row of a table."""
        return asdict(self)


def best_rates(rows: Sequence[Cells]) -> list[Best]:
    """One entry per model, width and shape, in the order of ``rows``.

    The best rate has the highest mean of held-out accuracies over the seeds. A training that
    diverged has accuracy 0; one that failed or has not ended does not count.
    """
    ended = [row for row in rows if row["status"] in ("finished", "diverged")]
    order = list(dict.fromkeys(_model(row) for row in ended))
    grouped = {key: [row for row in ended if _model(row) == key] for key in order}
    return [_best(group) for group in grouped.values()]


def _model(row: Cells) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("length", "pairs", "mixer", "width", "layers"))


def _best(rows: Sequence[Cells]) -> Best:
    def rate_of(row: Cells) -> Any:
        return row["rate"]

    found = []
    for rate, some in groupby(sorted(rows, key=rate_of), key=rate_of):
        own = list(some)
        accuracies = [float(row["held_out_accuracy"] or 0.0) for row in own]
        found.append((fmean(accuracies), rate, accuracies, own[0]))
    accuracy, rate, accuracies, row = max(found, key=lambda entry: entry[:2])
    values: dict[str, Any] = dict(row)
    return Best(
        mixer=values["mixer"],
        width=values["width"],
        layers=values["layers"],
        length=values["length"],
        pairs=values["pairs"],
        rate=rate,
        accuracy=accuracy,
        lowest=min(accuracies),
        highest=max(accuracies),
        seeds=len(accuracies),
        state_bytes=values["state_bytes"],
        parameters=values["parameters"],
    )
