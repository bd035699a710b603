"""Sweeps in processes: killed at any point they end with the same table, and leave no orphan."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.core.sweep_cases import Breaking, breaking_run, register, tiny_runs, tiny_sweep
from tests.core.training_cases import Counting

from seqmix import registry
from seqmix.training.sweeps.pool import Processes, _take_gpu
from seqmix.training.sweeps.sweep import CSV, Sweep

pytest.importorskip("lightning_fabric")

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to send")


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    with (
        registry.register_local("tasks", "counting", Counting),
        registry.register_local("tasks", "breaking", Breaking),
    ):
        yield


def started(out: Path, steps: int, workers: int = 2) -> subprocess.Popen[bytes]:
    """The sweep of the script, in a session of its own, so that a signal can reach all of it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.core.sweep_cases", str(out), str(steps), str(workers)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def members(session: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(sid) == session and state != "Z":
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def checkpoints(out: Path) -> list[Path]:
    return list(out.glob("runs/*/training.ckpt"))


def written(out: Path) -> dict[Path, int]:
    """When every checkpoint was written."""
    found = {}
    for path in checkpoints(out):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


def moved_on(out: Path, before: dict[Path, int]) -> bool:
    return written(out) != before


def whole(tmp_path: Path, steps: int) -> bytes:
    tiny_sweep(tmp_path / "whole", steps).run()
    return (tmp_path / "whole" / CSV).read_bytes()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see orphans")
@pytest.mark.parametrize(
    ("sent", "workers"),
    [
        pytest.param(signal.SIGKILL, 1, marks=pytest.mark.full),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.full),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.full),
    ],
)
def test_a_killed_sweep_leaves_no_orphan_and_ends_with_the_same_table(
    tmp_path: Path, sent: signal.Signals, workers: int
) -> None:
    out, steps = tmp_path / "cut", 60
    process = started(out, steps, workers)
    wait_for(lambda: checkpoints(out))
    assert len(members(process.pid)) > workers
    if sent is signal.SIGINT:  # As a terminal does it: everybody gets it.
        os.killpg(process.pid, sent)
    else:
        process.kill()
    assert process.wait(60) != 0
    wait_for(lambda: not members(process.pid), 60.0)
    left = tiny_sweep(out, steps).left()
    assert left
    tiny_sweep(out, steps).run()
    assert (out / CSV).read_bytes() == whole(tmp_path, steps)


@pytest.mark.full
def test_twenty_kills_at_random_points(tmp_path: Path) -> None:
    out, steps, chance = tmp_path / "cut", 1200, random.Random(0)
    for _ in range(20):
        before = written(out)
        process = started(out, steps)
        wait_for(partial(moved_on, out, before))
        time.sleep(chance.random() / 4)
        process.kill()
        process.wait(60)
        assert tiny_sweep(out, steps).left()
    tiny_sweep(out, steps).run()
    assert (out / CSV).read_bytes() == whole(tmp_path, steps)


@pytest.mark.full
def test_a_worker_that_dies_takes_its_run_alone(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    runs = [breaking_run("deadly", "die", flag), *tiny_runs(2)]
    report = Sweep(runs, tmp_path / "out").run(Processes(1, 1, register))
    assert [row["status"] for row in report.rows] == ["failed", "finished", "finished"]
    assert "ended by SIGKILL" in str(report.rows[0]["error"])
    flag.unlink()
    assert not Sweep(runs, tmp_path / "out").run().failed


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [("", 4, ["0", "1", "2", "3", "0"]), ("5,7", 2, ["5", "7", "5", "7", "5"]), ("", 1, [""] * 5)],
)
def test_workers_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int, expected: list[str]
) -> None:
    found = []
    for place in range(5):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        _take_gpu(place, count)
        found.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert found == expected
