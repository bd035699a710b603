"""A short trial of compiled models: each reads a prompt and then a token, in turn, and is timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seqmix.backend import Executable
from seqmix.bench.turns import rounds_of, timed

__all__ = ["TOKENS", "Times", "measure"]

TOKENS = 64
"""Length of the prompt, and of the answer that a choice is made for."""

_SECONDS = 1.0
"""What each contestant may take for its turns, warm-up apart."""
_ROUNDS = 15
_FEWEST = 3


@dataclass(frozen=True)
class Times:
    """Medians in seconds: of a prompt of ``tokens``, and of one token after it."""

    prefill: float
    step: float
    tokens: int

    @property
    def total(self) -> float:
        """A prompt, and an answer as long as the prompt."""
        return self.prefill + self.tokens * self.step


class _Contestant:
    """One compiled model, its prompt, and how long its turns took."""

    def __init__(self, executable: Executable) -> None:
        config = executable.config
        self._executable = executable
        self._tokens = max(1, min(TOKENS, config.context_length // 2))
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (1, self._tokens + 1), generator=generator)
        places = torch.arange(self._tokens + 1).unsqueeze(0)
        last = slice(self._tokens, None)
        self._prompt = ids[:, : self._tokens].clone(), places[:, : self._tokens].clone()
        self._token = ids[:, last].clone(), places[:, last].clone()
        self._states: Mapping[str, Tensor] = {}
        self._prefills: list[float] = []
        self._steps: list[float] = []

    @property
    def spent(self) -> float:
        """Seconds of all turns so far."""
        return sum(self._prefills) + sum(self._steps)

    def warm_up(self) -> None:
        """A turn that does not count: much is made ready at a first call."""
        _, self._states = self._executable(*self._prompt)
        self._executable(*self._token, self._states)

    def turn(self) -> None:
        """Read the prompt, and a token after it."""
        self._prefills.append(timed(lambda: self._executable(*self._prompt))())
        self._steps.append(timed(lambda: self._executable(*self._token, self._states))())

    def times(self) -> Times:
        """The medians."""
        medians = statistics.median(self._prefills), statistics.median(self._steps)
        return Times(*medians, self._tokens)


def measure(
    executables: Mapping[str, Executable], failed: Callable[[str, Exception], None]
) -> dict[str, Times]:
    """The times of compiled models by name; ``failed`` is told of those that raise.

    One sequence, random tokens. In every round each has its turn, so that what else the machine
    does falls on all of them.
    """
    contestants: dict[str, _Contestant] = {}

    def attempt(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # A backend of a plugin: what it raises is its result.
            contestants.pop(name, None)
            failed(name, error)

    for name, executable in list(executables.items()):
        contestants[name] = _Contestant(executable)
        attempt(name, contestants[name].warm_up)
    for turn in range(_ROUNDS):
        for name in rounds_of(contestants, turn):
            contestant = contestants[name]
            if turn < _FEWEST or contestant.spent < _SECONDS:
                attempt(name, contestant.turn)
    return {name: contestant.times() for name, contestant in contestants.items()}
