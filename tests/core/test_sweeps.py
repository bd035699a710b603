"""Sweeps: one table whatever happened on the way, failures kept apart, nothing mixed up."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.sweep_cases import Breaking, breaking_run, tiny_runs
from tests.core.training_cases import Counting, tiny_training

from seqmix import registry
from seqmix.config import Kind
from seqmix.errors import ConfigError
from seqmix.lock import LockFile
from seqmix.training.sweeps.job import RESULT, Job
from seqmix.training.sweeps.run import Run, identity
from seqmix.training.sweeps.sweep import CSV, PARQUET, TIMES, Sweep

pytest.importorskip("lightning_fabric")


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    with (
        registry.register_local("tasks", "counting", Counting),
        registry.register_local("tasks", "breaking", Breaking),
    ):
        yield


def table(out: Path) -> list[dict[str, str]]:
    with (out / CSV).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class StopError(Exception):
    pass


def test_the_table_has_a_row_per_run_in_their_order(tmp_path: Path) -> None:
    report = Sweep(tiny_runs(), tmp_path).run()
    rows = table(tmp_path)
    assert [row["name"] for row in rows] == ["seed0", "seed1", "seed2", "seed3"]
    assert [row["seed"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["status"] for row in rows] == ["finished", "finished", "diverged", "finished"]
    assert [row["name"] for row in report.failed] == ["seed2"]
    assert rows[0]["steps"] == "12"
    assert rows[0]["counted"] == "true"
    assert float(rows[0]["held_out_loss"]) == report.rows[0]["held_out_loss"]
    assert len({row["weights"] for row in rows}) == 4
    assert "no longer finite at step 2" in rows[2]["error"]
    assert str(tmp_path) not in (tmp_path / CSV).read_text(encoding="utf-8")
    with (tmp_path / TIMES).open(encoding="utf-8") as file:
        times = list(csv.DictReader(file))
    assert [row["steps"] for row in times] == ["12", "12", "2", "12"]
    assert all(float(row["seconds"]) > 0 for row in times)


def test_finished_runs_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tiny_runs()
    Sweep(runs[:3], tmp_path).run()
    made: list[str] = []
    kept = Sweep._job

    def job(self: Sweep, run: Run) -> Job:
        made.append(run.name)
        return kept(self, run)

    monkeypatch.setattr(Sweep, "_job", job)
    Sweep(runs, tmp_path).run()
    assert made == ["seed3"]
    Sweep(runs, tmp_path / "whole").run()
    assert (tmp_path / CSV).read_bytes() == (tmp_path / "whole" / CSV).read_bytes()


@pytest.mark.parametrize(("stopped", "saved"), [(1, 0), (7, 6)])
def test_an_interrupted_run_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: int, saved: int
) -> None:
    from seqmix.training.trainer import Trainer

    kept, last = Trainer.advance, [stopped]
    steps: list[int] = []

    def advance(self: Trainer) -> None:
        if len(steps) == last[0]:
            raise KeyboardInterrupt
        steps.append(self.standing.step)
        kept(self)

    runs = tiny_runs(2)
    Sweep(runs, tmp_path / "whole").run()
    monkeypatch.setattr(Trainer, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        Sweep(runs, tmp_path / "cut").run()
    assert [row["status"] for row in table(tmp_path / "cut")] == ["waiting", "waiting"]
    steps.clear()
    last[0] = 100
    Sweep(runs, tmp_path / "cut").run()
    assert steps == [*range(saved, 12), *range(12)]
    assert (tmp_path / "cut" / CSV).read_bytes() == (tmp_path / "whole" / CSV).read_bytes()


def test_a_run_that_fails_loses_no_other_and_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    runs = [breaking_run("broken", "raise", flag), *tiny_runs(2)]
    sweep = Sweep(runs, tmp_path / "out")
    report = sweep.run()
    assert [row["status"] for row in report.rows] == ["failed", "finished", "finished"]
    assert report.rows[0]["error"] == "OSError: the disk is gone"
    assert "Traceback" in (sweep.folder(runs[0]) / "failure.txt").read_text(encoding="utf-8")
    assert Sweep(runs, tmp_path / "out").report().rows == report.rows
    flag.unlink()
    again = Sweep(runs, tmp_path / "out").run()
    assert [row["status"] for row in again.rows] == ["finished"] * 3
    assert not (sweep.folder(runs[0]) / "failure.txt").exists()


def test_a_changed_training_is_another_run(tmp_path: Path) -> None:
    first = Run("one", tiny_training(seed=0))
    other = Run("one", tiny_training(seed=1))
    Sweep([first], tmp_path).run()
    old = table(tmp_path)
    sweep = Sweep([other], tmp_path)
    assert [run.name for run in sweep.left()] == ["one"]
    sweep.run()
    assert table(tmp_path)[0]["weights"] != old[0]["weights"]
    assert len(list((tmp_path / "runs").iterdir())) == 2
    Sweep([first], tmp_path).report()
    assert table(tmp_path) == old


def test_the_identity_is_that_of_training_and_data() -> None:
    training = tiny_training(seed=0)
    assert identity(training) == identity(tiny_training(seed=0))
    assert identity(training) != identity(tiny_training(seed=1))
    assert identity(training) != identity(training, "other data")
    ordered = training.model_dump_json()
    shuffled = json.dumps(dict(reversed(json.loads(ordered).items())))
    assert identity(type(training).model_validate_json(shuffled)) == identity(training)


def test_a_result_of_another_identity_does_not_count(tmp_path: Path) -> None:
    runs = tiny_runs(1)
    sweep = Sweep(runs, tmp_path)
    sweep.run()
    path = sweep.folder(runs[0]) / RESULT
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "identity": "0"}), encoding="utf-8")
    assert sweep.left() == runs
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"result.json: is no result.*remove it"):
        sweep.left()


def test_checkpoints_may_be_dropped(tmp_path: Path) -> None:
    runs = tiny_runs(1)
    for name, keep in (("kept", True), ("dropped", False)):
        sweep = Sweep(runs, tmp_path / name, keep_checkpoints=keep)
        sweep.run()
        assert (sweep.folder(runs[0]) / "training.ckpt").exists() is keep
    assert (tmp_path / "kept" / CSV).read_bytes() == (tmp_path / "dropped" / CSV).read_bytes()


def test_a_table_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    report = Sweep(tiny_runs(), tmp_path, parquet=True).run()
    assert parquet.read_table(tmp_path / PARQUET).to_pylist() == [
        {name: row.get(name) for name in table(tmp_path)[0]} for row in report.rows
    ]


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    sweep, other = Sweep(tiny_runs(1), tmp_path), LockFile(tmp_path / ".lock")
    assert other.take()
    with pytest.raises(ConfigError, match="another process is at work"):
        sweep.run()
    other.release()
    assert len(sweep.run().rows) == 1


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "at least one run"),
        ([Run("a", tiny_training()), Run("a", tiny_training(seed=1))], "several runs called a;"),
        ([Run("a/b", tiny_training())], "run 'a/b': a name should be"),
        ([Run("a", tiny_training(), {"steps": 3})], r"labels \['steps'\] are columns"),
    ],
)
def test_runs_that_do_not_fit(tmp_path: Path, runs: list[Run], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sweep(runs, tmp_path)


def test_a_task_that_does_not_fit_is_known_before_anything_begins(tmp_path: Path) -> None:
    wrong = tiny_training().model_copy(update={"task": Kind(kind="counting", row=3)})
    with pytest.raises(ConfigError, match=r"run 'b': .*unknown key 'row'.*'rows'"):
        Sweep([Run("a", tiny_training()), Run("b", wrong)], tmp_path).run()
    assert not list(tmp_path.iterdir())
