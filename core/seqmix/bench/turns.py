"""Turns: everybody works once per round, so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["WARM_UP", "in_turn", "rounds_of", "take_turns", "timed"]

WARM_UP = 2
"""Turns of each contestant that do not count."""

Turn = Callable[[], float]
"""Does the work once; its seconds."""


def in_turn(
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    pause: float = 0,
) -> dict[str, list[float]]:
    """Seconds of every turn of every contestant, after two turns that do not count.

    Every other turn goes backwards, so that nobody has always the same one before it.
    ``time.process_time`` as the clock counts what the process computes: with one thread that is
    the time of a machine that does nothing else. ``pause`` seconds lie between two turns.
    """
    turns = {name: timed(work, clock) for name, work in contestants.items()}
    return take_turns(turns, rounds, pause=pause)


def take_turns(
    turns: Mapping[str, Turn], rounds: int, *, warm_up: int = WARM_UP, pause: float = 0
) -> dict[str, list[float]]:
    """:func:`in_turn` of contestants that look at a clock themselves."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + warm_up):
        for name in rounds_of(turns, number):
            time.sleep(pause)
            spent = turns[name]()
            if number >= warm_up:
                seconds[name].append(spent)
    return seconds


def rounds_of(names: Iterable[str], number: int) -> list[str]:
    """Who works when in a round: every other round goes backwards."""
    order = list(names)
    return order[::-1] if number % 2 else order


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Turn:
    """``work`` as a turn, on a clock of seconds; what a GPU was asked to do is done by then."""

    def turn() -> float:
        started = clock()
        work()
        # Who has not imported torch has nothing to wait for.
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
        return clock() - started

    return turn
