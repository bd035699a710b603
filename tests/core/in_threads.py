"""The same work in many threads at once, and what each of them got."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from tests.core import tiny
from torch import Tensor

from seqmix.backend import Executable
from seqmix.compile import compile

__all__ = ["as_if_alone", "session", "together"]

THREADS = 8


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What ``work`` gives for each number, all of them begun at once; its errors are raised."""
    results: list[Any] = [None] * threads
    ready = threading.Barrier(threads)

    def run(number: int) -> None:
        ready.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def session(executable: Executable, number: int, tokens: int) -> list[Tensor]:
    """The logits of a prompt and of tokens after it, one by one; then the states."""
    # Every thread has another length, so that memory that is shared would not even fit.
    ids, positions = tiny.tokens(1 + number % 2, 3 + number + tokens, seed=number)
    first = 3 + number
    logits, states = executable(ids[:, :first], positions[:, :first])
    found, steps = [logits], executable.steps(states)
    for at in range(first, first + tokens):
        found.append(steps(ids[:, at : at + 1], positions[:, at : at + 1]).clone())
    return [*found, *(tensor for _, tensor in sorted(steps.states().items()))]


def as_if_alone(backend: str, steps: list[Any], tokens: int, rounds: int) -> None:
    executable = compile(tiny.model(steps), backend, cache=False)
    fresh = compile(tiny.model(steps), backend, cache=False)
    alone = [session(executable, number, tokens) for number in range(THREADS)]

    def again(number: int) -> list[list[Tensor]]:
        # A fresh one too: what is made at the first call is made by all at once.
        return [session(fresh, number, tokens) for _ in range(rounds)]

    for expected, found in zip(alone, together(again), strict=True):
        for one in found:
            for x, y in zip(expected, one, strict=True):
                torch.testing.assert_close(y, x, atol=1e-5, rtol=1e-5)
