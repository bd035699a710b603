"""What a model is trained on: rows of tokens, each with what should follow at every place.

Sizes: N rows, B rows of a batch, S tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqmix.errors import ConfigError

__all__ = ["IGNORED", "ArrayRows", "Batch", "Order", "Rows"]

IGNORED = -100
"""The target where nothing is asked; losses and accuracies leave it out."""


@dataclass(frozen=True)
class Batch:
    """Int64 ``inputs``, ``targets`` (:data:`IGNORED` where nothing is asked) and ``positions``."""

    inputs: Tensor
    targets: Tensor
    positions: Tensor

    def __len__(self) -> int:
        """The number of rows B."""
        return len(self.inputs)

    def asked(self) -> int:
        """How many places have a target."""
        return int((self.targets != IGNORED).sum())

    def part(self, start: int, stop: int | None = None, stride: int = 1) -> Batch:
        """Some of the rows, as a slice takes them."""
        some = slice(start, stop, stride)
        return Batch(self.inputs[some], self.targets[some], self.positions[some])

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        tensors = (self.inputs, self.targets, self.positions)
        return Batch(*(tensor.to(device) for tensor in tensors))


class Rows(Protocol):
    """Rows that can be read in any order."""

    def __len__(self) -> int:
        """How many there are, N."""
        ...

    def take(self, index: NDArray[np.int64]) -> Batch:
        """The rows of these numbers."""
        ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory: ``inputs`` and ``targets``, integers ``[N, S]``."""

    inputs: NDArray[Any]
    targets: NDArray[Any]

    def __post_init__(self) -> None:
        """ConfigError unless the two have one shape."""
        if self.inputs.ndim != 2 or self.inputs.shape != self.targets.shape:
            raise ConfigError(
                "rows: inputs and targets should be [N, S] both, found "
                f"{list(self.inputs.shape)} and {list(self.targets.shape)}"
            )

    def __len__(self) -> int:
        """The number of rows N."""
        return len(self.inputs)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """The rows of these numbers; positions count from 0."""
        inputs = torch.from_numpy(self.inputs[index].astype(np.int64))
        targets = torch.from_numpy(self.targets[index].astype(np.int64))
        return Batch(inputs, targets, torch.arange(inputs.shape[1]).repeat(len(inputs), 1))


class Order:
    """Which rows a step reads: every epoch a permutation of all, a function of seed and step.

    Nothing depends on what was read before, so training goes on anywhere. The rows that are left
    over at the end of an epoch, fewer than a batch, are not read in that epoch.
    """

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        """ConfigError for fewer rows than one batch."""
        if rows < batch:
            raise ConfigError(
                f"training has {rows} rows, fewer than one batch of {batch}; make the batch "
                "smaller, or give more data"
            )
        self._rows = rows
        self._batch = batch
        self._seed = seed
        self._epoch = -1
        self._shuffled: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self._rows // self._batch

    def at(self, step: int) -> NDArray[np.int64]:
        """The numbers of the rows of a step, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng([self._seed, epoch])
            self._shuffled, self._epoch = random.permutation(self._rows), epoch
        return self._shuffled[place * self._batch : (place + 1) * self._batch]
