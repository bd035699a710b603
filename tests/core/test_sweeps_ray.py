"""Sweeps on Ray: the same table as without it, and failures that stay their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.sweep_cases import Breaking, breaking_run, register, tiny_runs
from tests.core.training_cases import Counting

from seqmix import registry
from seqmix.errors import ConfigError
from seqmix.training.sweeps.on_ray import OnRay
from seqmix.training.sweeps.sweep import CSV, Sweep

pytest.importorskip("lightning_fabric")


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    with (
        registry.register_local("tasks", "counting", Counting),
        registry.register_local("tasks", "breaking", Breaking),
    ):
        yield


@pytest.mark.full
# Ray's own sockets and files, which it leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sweep_on_a_local_ray_has_the_same_table(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (the extra 'ray')")
    flag = tmp_path / "flag"
    flag.touch()
    runs = [breaking_run("deadly", "die", flag), *tiny_runs()]
    report = Sweep(runs, tmp_path / "ray").run(OnRay(1, workers=2, prepare=register))
    assert not ray.is_initialized()
    assert [row["status"] for row in report.rows] == [
        "failed", "finished", "finished", "diverged", "finished",
    ]  # fmt: skip
    assert "died" in str(report.rows[0]["error"])
    flag.unlink()
    Sweep(runs, tmp_path / "ray").run()
    Sweep(runs, tmp_path / "here").run()
    assert (tmp_path / "ray" / CSV).read_bytes() == (tmp_path / "here" / CSV).read_bytes()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "seqmix\[ray\]"'):
        OnRay(1)
