"""Rows of several lengths as one set to train on: shorter ones are padded behind.

Sizes: N rows, B rows of a batch, S tokens of the longest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seqmix.errors import ConfigError
from seqmix.training.rows import IGNORED, ArrayRows, Batch

__all__ = ["MixedRows"]


@dataclass(frozen=True)
class MixedRows:
    """The rows of ``parts`` one after the other; a batch is as long as its longest row."""

    parts: Sequence[ArrayRows]

    def __post_init__(self) -> None:
        """ConfigError when there is no row at all."""
        if not len(self):
            raise ConfigError("a mixture of rows is empty; give rows to one of its portions")

    def __len__(self) -> int:
        """The number of rows N."""
        return sum(map(len, self.parts))

    def take(self, index: NDArray[np.int64]) -> Batch:
        """The rows of these numbers; what is behind a shorter one has position -1."""
        ends = np.cumsum([len(part) for part in self.parts])
        which = np.searchsorted(ends, index, side="right")
        own = index - np.concatenate([[0], ends[:-1]])[which]
        used = sorted(set(which.tolist()))
        longest = max(self.parts[number].inputs.shape[1] for number in used)
        inputs = np.zeros((len(index), longest), np.int64)
        targets = np.full((len(index), longest), IGNORED, np.int64)
        positions = np.full((len(index), longest), -1, np.int64)
        for number in used:
            places, part = np.flatnonzero(which == number), self.parts[number]
            length = part.inputs.shape[1]
            inputs[places, :length] = part.inputs[own[places]]
            targets[places, :length] = part.targets[own[places]]
            positions[places, :length] = np.arange(length)
        return Batch(*(torch.from_numpy(array) for array in (inputs, targets, positions)))
