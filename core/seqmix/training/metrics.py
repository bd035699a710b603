"""The figures of a training as they come: a CSV file, and TensorBoard where it is wanted."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from seqmix.errors import ConfigError

__all__ = ["COLUMNS", "Metrics", "Row"]

Row: TypeAlias = Mapping[str, float | int | None]

COLUMNS = (
    "step",
    "tokens",
    "learning_rate",
    "loss",
    "auxiliary_loss",
    "gradient_norm",
    "held_out_loss",
    "held_out_accuracy",
)
"""Of the CSV file. Losses are nats per target; none of them depends on the clock."""

INSTALL = 'writing for TensorBoard needs tensorboardX; pip install "seqmix[train]"'


class Metrics:
    """Appends rows to ``metrics.csv``; numbers are written so that they read back exactly."""

    def __init__(self, path: Path, rows: Sequence[Row], tensorboard: Path | None = None) -> None:
        """Write ``rows`` anew: what an interrupted run had added behind them is gone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("w", encoding="utf-8", newline="") as file:
            _writer(file).writerow(COLUMNS)
            _writer(file).writerows(map(_cells, rows))
        part.replace(path)
        self._path = path
        self._board: Any = None if tensorboard is None else _board(tensorboard, rows)

    def add(self, row: Row) -> None:
        """Append a row; it is on disk when this returns."""
        with self._path.open("a", encoding="utf-8", newline="") as file:
            _writer(file).writerow(_cells(row))
        if self._board is not None:
            _show(self._board, row)
            self._board.flush()

    def close(self) -> None:
        """Finish what TensorBoard reads."""
        if self._board is not None:
            self._board.close()


def _writer(file: Any) -> Any:
    return csv.writer(file, lineterminator="\n")


def _cells(row: Row) -> list[str]:
    values = (row[name] for name in COLUMNS)
    return ["" if value is None else repr(value) for value in values]


def _board(folder: Path, rows: Sequence[Row]) -> Any:
    """A writer that forgets what came after the rows."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    purge = int(rows[-1]["step"] or 0) + 1 if rows else 0
    return SummaryWriter(str(folder), purge_step=purge)


def _show(board: Any, row: Row) -> None:
    for name in COLUMNS[1:]:
        if (value := row[name]) is not None:
            board.add_scalar(name, value, row["step"])
