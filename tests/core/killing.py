"""Processes that save again and again until they are killed, at a moment drawn at random."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Absent", "kill_again_and_again"]

T = TypeVar("T")
DEADLINE = 240.0
SAVES = 4

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["seqmix.model", "seqmix.compile", "seqmix.training.trainer"])


class Absent(Exception):  # noqa: N818  # it says what is not there, and is no error as such
    """Raised by a reader when there is nothing yet."""


def kill_again_and_again(
    kills: int,
    save_for_ever: Callable[..., None],
    arguments: tuple[Any, ...],
    read: Callable[[], T],
    seed: int,
) -> list[T]:
    """What ``read`` found after each kill, as often as there was something.

    ``save_for_ever(mark, *arguments)`` writes into the file ``mark``, before it begins, how many
    seconds a save takes. It is killed within the time of :data:`SAVES` of them. What was there once
    must be there ever after.
    """
    moments, found = random.Random(seed), []
    for number in range(kills):
        mark = Path(arguments[0]).parent / f"begun-{seed}-{number}"
        process = _context.Process(target=save_for_ever, args=(mark, *arguments), daemon=True)
        process.start()
        end = time.monotonic() + DEADLINE
        while process.is_alive() and not mark.exists() and time.monotonic() < end:
            time.sleep(0.002)
        assert mark.exists(), f"kill {number}: it did not begin"
        time.sleep(moments.uniform(0, SAVES * float(mark.read_text(encoding="utf-8"))))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"kill {number}: it ended by itself"
        try:
            found.append(read())
        except Absent:
            assert not found, f"seed {seed}, kill {number}: what was there is gone"
    return found
