"""A text that was read in part: its losses so far, and the states to go on from, in a file.

One pass over a long text takes minutes to hours on a CPU; whoever kills it loses a few minutes.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqmix.model import Model, flatten_states, unflatten_states
from seqmix.whole_file import whole_file
from seqmix_longcontext.subject import Runner

__all__ = ["Partial"]

EVERY = 300.0
"""Seconds between two savings: a state takes hundreds of megabytes."""


class Partial:
    """Saves what was read every few minutes; the file is whole or as it was before."""

    def __init__(self, path: Path, every: float = EVERY) -> None:
        """Nothing is read or written yet."""
        self._path = path
        self._every = every
        self._last = time.monotonic()

    def load(self, runner: Runner) -> tuple[int, list[NDArray[np.float64]], Any] | None:
        """How many tokens were read, their losses, and the states after; None for nothing."""
        try:
            kept = torch.load(self._path, weights_only=True)
            states = kept["states"]
            if isinstance(runner, Model):
                device = runner.embed.weight.device
                here = {name: tensor.to(device) for name, tensor in states.items()}
                states = unflatten_states(runner, here)
            return int(kept["read"]), [kept["losses"].numpy()], states
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError):
            return None

    def save(
        self, runner: Runner, read: int, losses: Sequence[NDArray[np.float64]], states: Any
    ) -> None:
        """Keep what was read if the last time is long ago."""
        if time.monotonic() - self._last < self._every:
            return
        flat = flatten_states(runner, states) if isinstance(runner, Model) else dict(states)
        kept = {
            "read": read,
            "losses": torch.from_numpy(np.concatenate(losses)),
            "states": {name: tensor.cpu() for name, tensor in flat.items()},
        }
        with whole_file(self._path) as file:
            torch.save(kept, file)
        self._last = time.monotonic()

    def remove(self) -> None:
        """The text was read to its end, or the file is of no use."""
        self._path.unlink(missing_ok=True)
