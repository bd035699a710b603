"""The figures of a training as they come: a CSV file, and TensorBoard where it is wanted."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

from seqmix.errors import ConfigError
from seqmix.whole_file import write_whole, writing

__all__ = ["COLUMNS", "Metrics", "Row", "check_tensorboard"]

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
        text = StringIO(newline="")
        _writer(text).writerow(COLUMNS)
        _writer(text).writerows(map(_cells, rows))
        write_whole(path, text.getvalue())
        self._path = path
        self._board: Any = None if tensorboard is None else _board(tensorboard, rows)

    def add(self, row: Row) -> None:
        """Append a row; it is in the file when this returns. WriteError where it cannot be.

        What a killed process or a full disk leaves of a row is gone when the training goes on.
        """
        with writing(self._path), self._path.open("a", encoding="utf-8", newline="") as file:
            _writer(file).writerow(_cells(row))
        if self._board is not None:
            _show(self._board, row)
            self._board.flush()

    def close(self) -> None:
        """Finish what TensorBoard reads."""
        if self._board is not None:
            self._board.close()


def check_tensorboard() -> None:
    """ConfigError where what writes for TensorBoard is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ConfigError(INSTALL) from error


def _writer(file: Any) -> Any:
    return csv.writer(file, lineterminator="\n")


def _cells(row: Row) -> list[str]:
    values = (row[name] for name in COLUMNS)
    return ["" if value is None else repr(value) for value in values]


def _board(folder: Path, rows: Sequence[Row]) -> Any:
    """A writer that forgets what came after the rows."""
    from tensorboardX import SummaryWriter

    purge = int(rows[-1]["step"] or 0) + 1 if rows else 0
    # Files are named by the second; a suffix keeps apart what begins within one.
    return SummaryWriter(str(folder), purge_step=purge, filename_suffix=f".{purge}")


def _show(board: Any, row: Row) -> None:
    for name in COLUMNS[1:]:
        if (value := row[name]) is not None:
            board.add_scalar(name, value, row["step"])
