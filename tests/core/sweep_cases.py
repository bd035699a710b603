"""Sweeps of trainings that take a moment, and tasks that break; a script runs one of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

from tests.core.training_cases import Counting, CountingConfig, tiny_training

from seqmix import registry
from seqmix.config import Kind
from seqmix.training.sweeps.pool import Processes
from seqmix.training.sweeps.run import Run
from seqmix.training.sweeps.sweep import Sweep

__all__ = ["Breaking", "breaking_run", "register", "tiny_runs", "tiny_sweep"]


class BreakingConfig(CountingConfig):
    how: Literal["raise", "die"] = "raise"
    flag: str = ""
    """A file without which nothing breaks."""


class Breaking(Counting):
    """Breaks when it is asked for its rows a second time, by the trainer."""

    Config = BreakingConfig

    def __init__(self, config: BreakingConfig) -> None:
        super().__init__(config)
        self.config = config

    @property
    def train(self) -> Any:
        if Path(self.config.flag).exists():
            if self.config.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the disk is gone")
        return self._train

    @train.setter
    def train(self, rows: Any) -> None:
        self._train = rows


_registered: list[Any] = []


def register() -> None:
    """Register the tasks for as long as the process lasts."""
    for name, task in (("counting", Counting), ("breaking", Breaking)):
        context = registry.register_local("tasks", name, task)
        context.__enter__()
        _registered.append(context)


def tiny_runs(count: int = 4, **plan: Any) -> list[Run]:
    """Trainings that differ in their seed; the third diverges."""
    made = []
    for seed in range(count):
        rate = 1e30 if seed == 2 else 0.05
        options = {"save_every": 2, "clip": None, "rate": rate, **plan}
        made.append(Run(f"seed{seed}", tiny_training(seed=seed, **options), {"seed": seed}))
    return made


def breaking_run(name: str, how: str, flag: Path) -> Run:
    """A run that breaks while the file ``flag`` is there."""
    training = tiny_training()
    task = Kind(kind="breaking", how=how, flag=str(flag))
    return Run(name, training.model_copy(update={"task": task}))


def tiny_sweep(out: Path, steps: int = 12) -> Sweep:
    """The sweep that the script of this module runs."""
    return Sweep(tiny_runs(steps=steps), out)


if __name__ == "__main__":
    register()
    folder, number, workers = sys.argv[1:]
    tiny_sweep(Path(folder), int(number)).run(Processes(int(workers), 1, register))
