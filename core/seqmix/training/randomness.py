"""The random numbers of a training: begun from its seed, kept between steps and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

__all__ = ["GeneratorStates", "Randomness"]

GeneratorStates: TypeAlias = dict[str, Tensor]
"""States of torch's generators by kind of device."""


class Randomness:
    """The states of torch's generators as a training leaves them, apart from everybody else's.

    Besides the CPU's generator there is the one of the training's CUDA device, if it has one.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with the generators as they are."""
        self._devices = [device] if device.type == "cuda" else []
        self.states: GeneratorStates = {}
        self.capture()

    @contextmanager
    def seeded(self, *seed: int) -> Iterator[None]:
        """Begin anew from a seed, or from several numbers that make one."""
        with torch.random.fork_rng(devices=self._devices):
            torch.manual_seed(seed[0] if len(seed) == 1 else _mixed(seed))
            yield
            self.capture()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Go on from where the last of these contexts ended; others' numbers stay untouched.

        A context that ends with an error counts as if it had not begun.
        """
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self.states["cpu"])
            for device in self._devices:
                torch.cuda.set_rng_state(self.states["cuda"], device)
            yield
            self.capture()

    def capture(self) -> None:
        """Note the present states; within one of the contexts they are those of the training."""
        self.states = {"cpu": torch.get_rng_state()}
        for device in self._devices:
            self.states["cuda"] = torch.cuda.get_rng_state(device)

    def gathered(self, world: int) -> list[GeneratorStates]:
        """The states of all processes by rank; every process must ask."""
        if world == 1:
            return [self.states]
        gathered: list[Any] = [None] * world
        torch.distributed.all_gather_object(gathered, self.states)
        return gathered

    def restore(self, gathered: list[GeneratorStates], rank: int) -> None:
        """Take the states of a rank; one that was not there before keeps what its seed gave it."""
        if rank < len(gathered):
            self.states = self.states | gathered[rank]


def _mixed(numbers: tuple[int, ...]) -> int:
    """One seed of several numbers, so that (0, 1) and (1, 0) are not alike."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
