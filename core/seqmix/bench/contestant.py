"""Who takes part: anything that reads a prompt, and then tokens one by one behind it.

S tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seqmix.backend import Executable, Steps

__all__ = ["Contestant", "ExecutableContestant"]


class Contestant(ABC):
    """A model that somebody implemented; ids are int64 on the CPU, and so are the logits."""

    @abstractmethod
    def read(self, ids: Tensor) -> Tensor:
        """Forget everything and read a prompt ``[1, S]``; logits ``[1, V]`` of its last token."""

    @abstractmethod
    def step(self, token: Tensor) -> Tensor:
        """Read one more token ``[1, 1]``; its logits ``[1, V]``."""

    @abstractmethod
    def rewind(self) -> None:
        """Go back to the end of the prompt that was read last; not timed."""


class ExecutableContestant(Contestant):
    """A compiled model."""

    def __init__(self, executable: Executable) -> None:
        """``executable`` gives the logits of the last token at least."""
        self._executable = executable
        self._steps: Steps | None = None
        self._length = self._past = 0
        self._after: dict[str, Tensor] = {}

    def read(self, ids: Tensor) -> Tensor:
        """Read a prompt; its states are kept for :meth:`rewind`."""
        self._length = self._past = ids.shape[1]
        self._steps = None
        positions = torch.arange(self._length).unsqueeze(0)
        logits, self._after = self._executable(ids, positions)
        return logits[:, -1]

    def step(self, token: Tensor) -> Tensor:
        """Read one more token in the way that the backend does it best."""
        if self._steps is None:
            self.rewind()
        steps = self._steps
        if steps is None:  # rewind() sets it; said for the type checker.
            raise RuntimeError("no prompt was read")
        logits = steps(token, torch.tensor([[self._past]]))
        self._past += 1
        return logits[:, -1]

    def rewind(self) -> None:
        """Start again from the states after the prompt."""
        self._past = self._length
        self._steps = self._executable.steps(self._after)
