"""How a model is trained, and the file that says so: model, task and plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from seqmix.config import Kind, ModelConfig, Strict, build_config, read_options

__all__ = ["Plan", "Training", "learning_rate", "read_training"]


class Plan(Strict):
    """All that decides what is computed, but for model and task; kept in every checkpoint."""

    steps: PositiveInt
    """Updates of the weights at most."""
    batch: PositiveInt = 64
    """Rows of an update, over all micro-batches and processes."""
    accumulate: PositiveInt = 1
    """Micro-batches per update; saves memory and changes nothing else."""
    rate: float = Field(default=1e-3, gt=0)
    """The learning rate after the warm-up."""
    warm_up: NonNegativeInt = 0
    """Updates in which the rate grows from 0."""
    lowest: float = Field(default=0.1, ge=0, le=1)
    """The share of ``rate`` at which half a cosine ends."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of matrices; biases, norms, tables of embeddings and single numbers do not decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = Field(default=1.0, gt=0)
    """The largest norm of the whole gradient; None for any."""
    precision: Literal["model", "bf16-mixed"] = "model"
    """The model's own type throughout, or bfloat16 where torch deems it safe."""
    seed: NonNegativeInt = 0
    """Of fresh weights and of the order of the rows."""
    log_every: PositiveInt = 10
    test_every: PositiveInt = 100
    save_every: PositiveInt = 100
    test_batch: PositiveInt | None = None
    """Rows at a time when testing; None for a micro-batch."""
    stop: Literal["loss", "accuracy"] | None = None
    """The held-out figure that may end the training early."""
    stop_at: float | None = None
    """The figure that is good enough."""
    patience: PositiveInt | None = None
    """Tests without a better figure before giving up."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(f"batch = {self.batch} is no multiple of accumulate")
        if self.stop is None and (self.stop_at, self.patience) != (None, None):
            raise ValueError("stop_at and patience need 'stop', the figure: loss or accuracy")
        if self.stop is not None and (self.stop_at, self.patience) == (None, None):
            raise ValueError(f"stop = '{self.stop}' needs stop_at or patience")
        return self


class Training(Strict):
    """A training from end to end, as a file describes it."""

    model: ModelConfig
    task: Kind
    training: Plan


def read_training(path: Path) -> Training:
    """A training from a ``.json`` or ``.toml`` file; ConfigError where it does not fit."""
    return build_config(Training, read_options(path), str(path))


def learning_rate(step: int, plan: Plan) -> float:
    """The rate of a step, from 0: linear warm-up, then half a cosine down to the lowest."""
    if step < plan.warm_up:
        return plan.rate * (step + 1) / plan.warm_up
    share = min(1.0, (step - plan.warm_up) / max(1, plan.steps - 1 - plan.warm_up))
    return plan.rate * (plan.lowest + (1 - plan.lowest) * (1 + math.cos(math.pi * share)) / 2)
