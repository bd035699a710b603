"""A sweep from end to end: what is left to do, who does it, and the table of what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from seqmix.errors import ConfigError, PluginError
from seqmix.lock import LockFile
from seqmix.training.plan import Training
from seqmix.training.sweeps.bars import show_bars
from seqmix.training.sweeps.job import FAILURE, RESULT, Job, read_result
from seqmix.training.sweeps.pool import Executor, Here
from seqmix.training.sweeps.run import Run, check_runs, identity
from seqmix.training.sweeps.table import (
    COLUMNS,
    Cells,
    columns_of,
    row_of,
    seconds_of,
    write_csv,
    write_parquet,
)
from seqmix.whole_file import write_whole

__all__ = ["CSV", "PARQUET", "TIMES", "Sweep", "SweepReport"]

CSV = "table.csv"
PARQUET = "table.parquet"
TIMES = "times.csv"
RUNS = "runs"
LOCK = ".lock"


@dataclass(frozen=True)
class SweepReport:
    """The rows of the table, in the order of the runs, and the file that has them."""

    rows: list[Cells]
    table: Path

    @property
    def failed(self) -> list[Cells]:
        """Rows of runs that have no figures: they diverged, failed or are waiting."""
        return [row for row in self.rows if row["status"] != "finished"]


class Sweep:
    """Trainings in one folder, each in a folder of its own there.

    ``out`` gets ``table.csv``, ``table.parquet`` where it is wanted, and ``times.csv`` with the
    seconds of every run, those of its last stretch if it was interrupted. A run's folder is called
    by its name and its identity: one whose training has changed begins anew in another folder, and
    only the runs that are given stand in the table.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        out: Path,
        *,
        parquet: bool = False,
        keep_checkpoints: bool = True,
    ) -> None:
        """Check all runs before any is begun.

        Tasks are built, so that what is wrong with one is known at once; a text is made into tokens
        here and not by every worker. Raises ConfigError and PluginError, naming the run.
        """
        check_runs(runs, COLUMNS)
        self.runs = list(runs)
        self.out = out
        self.parquet = parquet
        self.keep_checkpoints = keep_checkpoints
        self._data = _fingerprints(self.runs)

    def left(self) -> list[Run]:
        """The runs that are not finished."""
        return [
            run for run in self.runs if read_result(self.folder(run), self._identity(run)) is None
        ]

    def folder(self, run: Run) -> Path:
        """The folder of a run."""
        return self.out / RUNS / run.folder(self._data[_task_of(run.training)])

    def run(self, executor: Executor | None = None) -> SweepReport:
        """Do what is left, and write the tables whenever a run has ended.

        By default one run after the other in this process; see
        :class:`~seqmix.training.sweeps.pool.Processes` and
        :class:`~seqmix.training.sweeps.on_ray.OnRay`. An interrupt stops the runs, which the next
        call goes on with. ConfigError when another process is at work in the folder.
        """
        lock = LockFile(self.out / LOCK)
        if not lock.take():
            raise ConfigError(
                f"{self.out}: another process is at work on the sweep there; wait for its end, or "
                "choose another folder"
            )
        try:
            return self._run(executor or Here())
        finally:
            lock.release()

    def report(self, errors: dict[str, str] | None = None) -> SweepReport:
        """Write the tables from what is there; ``errors`` by name tell of runs that died."""
        errors = errors or {}
        rows = [
            row_of(run, self.folder(run), self._data_of(run), errors.get(run.name))
            for run in self.runs
        ]
        columns = columns_of(self.runs, rows)
        write_csv(self.out / CSV, columns, rows)
        if self.parquet:
            write_parquet(self.out / PARQUET, columns, rows)
        times = [seconds_of(run, self.folder(run)) for run in self.runs]
        write_csv(self.out / TIMES, ("name", "seconds", "steps"), times)
        return SweepReport(rows, self.out / CSV)

    def _run(self, executor: Executor) -> SweepReport:
        left = self.left()
        jobs = [self._job(run) for run in left]
        errors: dict[str, str] = {}
        report = self.report()
        with (
            show_bars([run.name for run in left], len(self.runs)) as bars,
            closing(executor.run(jobs, bars.told)) as outcomes,
        ):
            for outcome in outcomes:
                bars.ended(outcome.number, outcome.error)
                if outcome.error is not None:
                    errors[jobs[outcome.number].name] = outcome.error
                    _note(jobs[outcome.number], outcome.error)
                report = self.report(errors)
        return report

    def _job(self, run: Run) -> Job:
        return Job(
            name=run.name,
            training=run.training.model_dump_json(),
            folder=str(self.folder(run)),
            identity=self._identity(run),
            keep=self.keep_checkpoints,
        )

    def _identity(self, run: Run) -> str:
        return identity(run.training, self._data_of(run))

    def _data_of(self, run: Run) -> str:
        return self._data[_task_of(run.training)]


def _fingerprints(runs: Sequence[Run]) -> dict[str, str]:
    """The fingerprint of every task, which are built once each."""
    from seqmix.training.task import build_task

    found: dict[str, str] = {}
    for run in runs:
        if (task := _task_of(run.training)) not in found:
            try:
                found[task] = build_task(run.training.task).fingerprint()
            except (ConfigError, PluginError) as error:
                raise type(error)(f"run '{run.name}': {error}") from error
    return found


def _task_of(training: Training) -> str:
    return training.task.model_dump_json()


def _note(job: Job, error: str) -> None:
    """Keep what a worker that died could not write itself."""
    folder = Path(job.folder)
    if not (folder / RESULT).is_file() and not (folder / FAILURE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FAILURE, error + "\n")
