"""What an MQAR sweep runs over: models, widths, rows, rates, seeds; and how each is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from seqmix.config import Kind, ModelConfig, Strict, build_config
from seqmix.errors import ConfigError, PluginError
from seqmix.training.plan import Plan, Training
from seqmix.training.sweeps.run import Label, Run
from seqmix_recall.recipes import model_of
from seqmix_recall.settings import MQARSettings, Portion

if TYPE_CHECKING:
    from seqmix.costs import Cost

__all__ = ["MQARSweep", "Shape", "costs_of"]


class Shape(Strict):
    """Rows of ``length`` tokens with ``pairs`` keys, and how many of them an update takes."""

    length: PositiveInt
    pairs: PositiveInt
    batch: PositiveInt | None = None
    """None for the sweep's."""


class MQARSweep(Strict):
    """A grid of trainings: every model of every width on rows of every shape, at every rate."""

    mixers: list[str] = Field(min_length=1)
    """Recipes; see :mod:`~seqmix_recall.recipes`."""
    dims: list[PositiveInt] = Field(min_length=1)
    shapes: list[Shape] = Field(min_length=1)
    rates: list[float] = Field(min_length=1)
    seeds: list[NonNegativeInt] = Field(default=[0], min_length=1)
    """Of weights and order; the rows are the same."""
    layers: PositiveInt = 2
    layers_of: dict[str, PositiveInt] = Field(default_factory=dict)
    """Of single recipes that have another number of layers."""
    vocab_size: PositiveInt = 8192
    train_rows: PositiveInt = 100_000
    test_rows: PositiveInt = 3_000
    test_seed: NonNegativeInt = 10
    """Of the rows that are held out."""
    mixture: list[Portion] = Field(default_factory=list)
    """Trained on and tested beside every shape, in one run."""
    batch: PositiveInt = 64
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    """How long, either way."""
    test_every: PositiveInt | None = None
    """Steps between tests; None for once an epoch, or at the end when that is longer."""
    stop_at: float | None = None
    """The held-out accuracy that ends a training."""
    warm_up: NonNegativeInt = 0
    lowest: float = 0.0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = 1.0
    test_batch: PositiveInt | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs, how long each training takes")
        for name in ("mixers", "dims", "rates", "seeds"):
            listed = getattr(self, name)
            if twice := sorted({str(one) for one in listed if listed.count(one) > 1}):
                raise ValueError(f"{name} lists {', '.join(twice)} twice")
        return self

    def count(self) -> int:
        """How many runs there are."""
        axes = (self.shapes, self.mixers, self.dims, self.rates, self.seeds)
        return math.prod(len(axis) for axis in axes)

    def runs(self) -> list[Run]:
        """Every run, shape by shape; ConfigError names the recipe or the shape that does not fit.

        Labels are what the grid runs over, and the bytes that a row of that length leaves as state.
        """
        return list(self._runs())

    def _runs(self) -> Iterator[Run]:
        for shape, mixer, width in product(self.shapes, self.mixers, self.dims):
            task = self._task(shape)
            config = self._model(mixer, width, task)
            state_bytes = costs_of(config, _longest(task)).bytes
            for rate, seed in product(self.rates, self.seeds):
                labels: dict[str, Label] = {
                    "mixer": mixer,
                    "width": width,
                    "layers": len(config.steps()),
                    "length": shape.length,
                    "pairs": shape.pairs,
                    "rate": rate,
                    "seed": seed,
                    "state_bytes": state_bytes,
                }
                plan = self._plan(shape, task, rate, seed)
                kind = Kind(kind="mqar", **task.model_dump(exclude_defaults=True))
                training = Training(model=config, task=kind, training=plan)
                yield Run(_name(mixer, width, shape, rate, seed), training, labels)

    def _task(self, shape: Shape) -> MQARSettings:
        options: dict[str, Any] = {
            "vocab_size": self.vocab_size,
            "length": shape.length,
            "pairs": shape.pairs,
            "train_rows": self.train_rows,
            "test_rows": self.test_rows,
            "test_seed": self.test_seed,
            "mixture": [portion.model_dump() for portion in self.mixture],
        }
        where = f"rows of {shape.length} tokens with {shape.pairs} pairs"
        return build_config(MQARSettings, options, where)

    def _model(self, mixer: str, width: int, task: MQARSettings) -> ModelConfig:
        layers = self.layers_of.get(mixer, self.layers)
        length = _longest(task)
        config = model_of(
            mixer, width=width, length=length, layers=layers, vocab_size=task.vocab_size
        )
        try:
            costs_of(config, length)
        except (ConfigError, PluginError) as error:
            raise type(error)(f"mixers '{mixer}' at width {width}: {error}") from error
        return config

    def _plan(self, shape: Shape, task: MQARSettings, rate: float, seed: int) -> Plan:
        batch = shape.batch or self.batch
        epoch = max(1, sum(task.counts("train")) // batch)
        steps = self.steps or epoch * (self.epochs or 1)
        test_every = min(steps, self.test_every or epoch)
        options: dict[str, Any] = {
            "steps": steps,
            "batch": batch,
            "rate": rate,
            "seed": seed,
            "warm_up": self.warm_up,
            "lowest": self.lowest,
            "weight_decay": self.weight_decay,
            "betas": self.betas,
            "clip": self.clip,
            "log_every": min(test_every, 50),
            "test_every": test_every,
            "save_every": test_every,
            "test_batch": self.test_batch,
            "stop": None if self.stop_at is None else "accuracy",
            "stop_at": self.stop_at,
        }
        return build_config(Plan, options, f"training at rate {rate}")


def costs_of(config: ModelConfig, length: int) -> Cost:
    """State after ``length`` tokens, parameters, and operations of a forward of one row.

    They come from the mixers' own specs; no weights are made.
    """
    return _costs_of(config.to_json(), length)


@lru_cache(maxsize=4096)
def _costs_of(config: str, length: int) -> Cost:
    import torch

    from seqmix.costs import model_costs, total_cost
    from seqmix.model import Model

    with torch.device("meta"):
        model = Model(ModelConfig.model_validate_json(config))
    return total_cost(model_costs(model, 1, length))


def _longest(task: MQARSettings) -> int:
    return max(portion.length for portion in task.portions())


def _name(mixer: str, width: int, shape: Shape, rate: float, seed: int) -> str:
    plain = mixer.replace(":", "_")
    return f"{plain}-d{width}-l{shape.length}-kv{shape.pairs}-r{rate:g}-s{seed}"
