"""The interface of a sequence mixer: one residual branch with an explicit state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel
from torch import Tensor, nn

from seqmix.context import Context
from seqmix.state import State, StateSpec

__all__ = ["SequenceMixer"]


class SequenceMixer(nn.Module, ABC):
    """One residual branch ``[B, S, D] -> [B, S, D]``, causal along S.

    Built as ``cls(config, width)``: ``config`` is an instance of ``Config``, ``width`` is D.
    It must keep the four laws: *splitting* (piece by piece equals at once), *padding* (positions -1
    give output 0 and change nothing else), *causality*, *purity* (no argument is mutated).
    """

    Config: ClassVar[type[BaseModel]]
    api: ClassVar[tuple[int, int]] = (1, 0)
    exact_causality: ClassVar[bool] = True
    """Later inputs change no bit of earlier outputs; False for FFT, where rounding may."""

    @abstractmethod
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Map ``x [B, S, D]`` (any S >= 1) and the state before to the output and the state after.

        The returned state has the keys and ranks of :meth:`state_spec`.
        """

    def state_spec(self) -> dict[str, StateSpec]:
        """What the mixer remembers; empty for a branch that works token by token."""
        return {}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Options that the conformance kit tries, for width 24; by default none are needed."""
        return [{}]

    @abstractmethod
    def flops(self, batch_size: int, seq_len: int) -> int:
        """Multiply-adds times two of one forward over ``seq_len`` tokens from an empty state."""

    def step_flops(self, batch_size: int, past: int) -> int:
        """Multiply-adds times two of one more token after ``past`` tokens, as decoding does it.

        By default what that token adds to a forward over all. That is right wherever a forward
        does for each token what a step does; a forward by transforms does not, and says otherwise.
        """
        before = self.flops(batch_size, past) if past else 0
        return self.flops(batch_size, past + 1) - before
