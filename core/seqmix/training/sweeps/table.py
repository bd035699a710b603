"""The table of a sweep: a row per run in the order of the runs, as CSV and as Parquet.

It is made from the results alone and has nothing of the clock in it, so it is the same bytes
however often the sweep was interrupted. Seconds have a table of their own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from seqmix.errors import ConfigError
from seqmix.reading import UnreadableError, read_json
from seqmix.training.sweeps.job import FAILURE, SECONDS, read_result
from seqmix.training.sweeps.run import Run, identity
from seqmix.whole_file import whole_file, write_whole

__all__ = ["COLUMNS", "Cells", "columns_of", "row_of", "write_csv", "write_parquet"]

Cells: TypeAlias = "dict[str, str | int | float | bool | None]"

FIRST = ("name",)
LAST = (
    "status",
    "steps",
    "tokens",
    "parameters",
    "stopped_early",
    "held_out_loss",
    "held_out_accuracy",
)
ENDING = ("weights", "error")
COLUMNS = (*FIRST, *LAST, *ENDING)
"""Those of every sweep: labels stand behind the name, the task's figures before ``weights``.

``status`` is finished, diverged (a loss that is not finite ended the training), failed (anything
else; tried again by the next call) or waiting; ``weights`` the start of a sha256 over them.
"""

INSTALL = 'a table as Parquet needs pyarrow; pip install "seqmix[parquet]", or leave it out'


def row_of(run: Run, folder: Path, data: str, error: str | None = None) -> Cells:
    """The row of a run; ``error`` is what this call has seen of it."""
    result = read_result(folder, identity(run.training, data))
    if result is None:
        return {"name": run.name, **run.labels, **_unfinished(folder, error)}
    report = result.get("report", {})
    figures = {k: v for k, v in report.items() if _is_cell(v) and k not in COLUMNS}
    known = {name: result.get(name) for name in (*LAST, *ENDING)}
    return {"name": run.name, **run.labels, **figures, **known}


def columns_of(runs: Sequence[Run], rows: Sequence[Cells]) -> list[str]:
    """All columns: name, labels, what every sweep has, figures of the tasks, weights, error."""
    labels = list(dict.fromkeys(label for run in runs for label in run.labels))
    fixed = {*COLUMNS, *labels}
    figures = dict.fromkeys(name for row in rows for name in row if name not in fixed)
    return [*FIRST, *labels, *LAST, *figures, *ENDING]


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; numbers read back exactly, what a row lacks is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    write_whole(path, text.getvalue())


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with types; ConfigError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    with whole_file(path) as file:
        parquet.write_table(table, file)


def seconds_of(run: Run, folder: Path) -> Cells:
    """How long the last stretch of a run took, and how many steps it had; None before its end."""
    path = folder / SECONDS
    if not path.is_file():
        return {"name": run.name, "seconds": None, "steps": None}
    try:
        return {"name": run.name, **read_json(path)}
    except (UnreadableError, TypeError) as error:
        raise ConfigError(f"{path}: {error}; remove it") from error


def _unfinished(folder: Path, error: str | None) -> Cells:
    if error is None and (folder / FAILURE).is_file():
        error = (folder / FAILURE).read_text(encoding="utf-8").strip().splitlines()[-1]
    return {"status": "waiting" if error is None else "failed", "error": error}


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
