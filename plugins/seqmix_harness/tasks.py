"""Tasks of lm-eval by name: one's own folders first, then those that it ships, and presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqmix.errors import ConfigError, did_you_mean
from seqmix_harness.language_model import INSTALL

__all__ = ["PRESETS", "Wanted", "find_tasks", "preset_tasks"]


@dataclass(frozen=True)
class Wanted:
    """A task, and how many solved examples stand before a question; None for the task's own."""

    name: str
    shots: int | None = None


PRESETS: dict[str, tuple[Wanted, ...]] = {
    "open-llm": (
        Wanted("arc_challenge", 25),
        Wanted("hellaswag", 10),
        Wanted("mmlu", 5),
        Wanted("truthfulqa_mc2", 0),
    ),
}
"""``open-llm`` is what the YaRN paper reports in its table of standardized benchmarks: the tasks of
the Open LLM leaderboard of 2023. Their data sets are fetched from the Hugging Face hub when they
are first used, and must be in its cache where there is no network."""


def preset_tasks(name: str) -> tuple[Wanted, ...]:
    """The tasks of a preset; ConfigError that suggests near names."""
    if name not in PRESETS:
        raise ConfigError(
            f"no preset is called '{name}'{did_you_mean(name, PRESETS)}; there are "
            f"{', '.join(PRESETS)}"
        )
    return PRESETS[name]


def find_tasks(names: Sequence[str], folders: Sequence[Path]) -> Any:
    """lm-eval's task manager for these tasks; ConfigError for a name that it does not know.

    The thousands of tasks that lm-eval ships are only indexed when a name is in none of the
    ``folders``.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: is no folder of task files (.yaml)")
    own = [str(folder) for folder in folders]
    manager = TaskManager(include_path=own, include_defaults=False) if own else None
    if manager is None or not set(names) <= set(manager.all_tasks):
        manager = TaskManager(include_path=own or None)
    for name in names:
        if name not in manager.all_tasks:
            near = did_you_mean(name, manager.all_tasks)
            raise ConfigError(
                f"lm-eval knows no task '{name}'{near}; --include-path takes a folder of task files"
            )
    return manager
