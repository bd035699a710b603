"""A task and trainings that take a moment, in this process or in others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from pydantic import PositiveInt
from torch import Tensor, nn

from seqmix import SequenceMixer, registry
from seqmix.config import Kind, ModelConfig, Strict
from seqmix.training.plan import Plan, Training
from seqmix.training.rows import IGNORED, ArrayRows
from seqmix.training.task import Task

__all__ = ["Counting", "Noisy", "cases", "noisy_training", "tiny_training"]


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


class NoisyConfig(Strict):
    """The share that is dropped."""

    drop: float = 0.3


class Noisy(SequenceMixer):
    """Drops out, and wants something added to the loss."""

    Config = NoisyConfig

    def __init__(self, config: NoisyConfig, width: int) -> None:
        super().__init__()
        self.drop = config.drop
        self.layer = nn.Linear(width, width)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor, state: Any, ctx: Any) -> tuple[Tensor, Any]:
        hidden = self.layer(x)
        # Its gradient passes by the output of the branch, and needs the weights once more.
        ctx.aux_losses.append(0.25 * self.inner(hidden.tanh()).square().mean())
        return nn.functional.dropout(hidden, self.drop, self.training), {}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        return [{}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 0


def noisy_training(drop: float = 0.3, dtype: str = "f32", **plan: Any) -> Training:
    """Two layers of :class:`Noisy`, a convolution and a swiglu on :class:`Counting`."""
    model = ModelConfig(
        vocab_size=8,
        width=8,
        context_length=8,
        dtype=dtype,
        blocks=[
            {
                "repeat": 2,
                "steps": [
                    {"kind": "noisy", "drop": drop},
                    [{"kind": "base_conv", "taps": 3}, {"kind": "swiglu", "hidden": 13}],
                ],
            }
        ],
    )
    return tiny_training(**plan).model_copy(update={"model": model})


@contextmanager
def cases() -> Iterator[None]:
    """Make the task ``counting`` and the mixer ``noisy`` known."""
    with ExitStack() as stack:
        stack.enter_context(registry.register_local("tasks", "counting", Counting))
        stack.enter_context(registry.register_local("mixers", "noisy", Noisy))
        yield
