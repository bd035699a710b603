"""One training of a sweep: its name, what the table says of it, and what tells it apart."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from seqmix.errors import ConfigError
from seqmix.training.plan import Training

__all__ = ["Label", "Run", "check_runs", "identity"]

Label: TypeAlias = "str | int | float | bool | None"

FORMAT = 1
"""Of results: another number makes every run a new one."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=,-]{0,119}")
SHOWN = 12
"""Digits of an identity in the name of a folder."""


@dataclass(frozen=True)
class Run:
    """A training with a name of its own and ``labels``, which become columns of the table."""

    name: str
    training: Training
    labels: Mapping[str, Label] = field(default_factory=dict)

    def folder(self, data: str = "") -> str:
        """The name of the folder; another training or other ``data`` have another one."""
        return f"{self.name}-{identity(self.training, data)[:SHOWN]}"


def identity(training: Training, data: str = "") -> str:
    """A sha256 over all that decides what comes out; ``data`` is the fingerprint of the task.

    The order of keys does not matter. Names and labels are no part of it.
    """
    content = {"format": FORMAT, "training": training.model_dump(mode="json"), "data": data}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_runs(runs: Sequence[Run], taken: Sequence[str]) -> None:
    """ConfigError for no runs, equal or odd names, and labels called like a ``taken`` column."""
    if not runs:
        raise ConfigError("a sweep needs at least one run, found none")
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"a sweep has several runs called {', '.join(twice)}; give each a name of its own"
        )
    for run in runs:
        if not NAME.fullmatch(run.name):
            raise ConfigError(
                f"run '{run.name}': a name should be letters, digits and _.+=,- (it is that of a "
                "folder), 120 at most, the first a letter or digit"
            )
        if wrong := sorted(set(run.labels) & set(taken)):
            raise ConfigError(
                f"run '{run.name}': labels {wrong} are columns that every sweep has; rename them"
            )
