"""A task and a training that take a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import PositiveInt

from seqmix.config import Kind, ModelConfig, Strict
from seqmix.training.plan import Plan, Training
from seqmix.training.rows import IGNORED, ArrayRows
from seqmix.training.task import Task

__all__ = ["Counting", "tiny_training"]


class CountingConfig(Strict):
    """``rows`` to train on; ``shift`` changes the data."""

    rows: PositiveInt = 32
    shift: int = 1


class Counting(Task):
    """Every token is the one before it plus ``shift``, modulo 8; half of the places ask."""

    Config = CountingConfig
    vocab_size = 8

    def __init__(self, config: CountingConfig) -> None:
        self.train = self._rows(config.rows, config.shift, 0)
        self.held_out = self._rows(10, config.shift, 1)

    train: Any = None
    held_out: Any = None

    def _rows(self, count: int, shift: int, seed: int) -> ArrayRows:
        random = np.random.default_rng(seed)
        tokens = (random.integers(8, size=(count, 1)) + shift * np.arange(7)) % 8
        targets = tokens[:, 1:].copy()
        targets[random.random(targets.shape) < 0.5] = IGNORED
        return ArrayRows(tokens[:, :-1], targets)

    def report(self, model: Any) -> dict[str, Any]:
        return {"counted": True}


def tiny_training(**plan: Any) -> Training:
    """One swiglu branch on :class:`Counting`, as the task ``counting``."""
    model = ModelConfig(
        vocab_size=8,
        width=8,
        context_length=8,
        blocks=[{"steps": [{"kind": "swiglu", "hidden": 12}]}],
    )
    plan = {"steps": 12, "batch": 8, "rate": 0.05, "log_every": 2, "test_every": 4, **plan}
    return Training(model=model, task=Kind(kind="counting"), training=Plan(**plan))
