"""What the first of several processes does for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seqmix.errors import SeqmixError

__all__ = ["first_for_all", "leave_processes", "settle"]

PAUSES, PAUSE = 20, 0.01
"""How often a process pauses at the end, and for how many seconds."""


def first_for_all(fabric: Any, action: Callable[[], object]) -> None:
    """Let the first process act while the others wait; its error is raised in each of them.

    Every process must call it. Errors that are not of files or of seqmix are bugs: they end the
    first process, and whoever started the processes ends the others.
    """
    if fabric.world_size == 1:
        action()
        return
    error: Exception | None = None
    if fabric.is_global_zero:
        try:
            action()
        except (SeqmixError, OSError) as caught:
            error = caught
    error = fabric.broadcast(error)
    if error is not None:
        raise error


def leave_processes(fabric: Any) -> None:
    """Part from the other processes at the end of all work; nothing happens where there are none.

    Not for the way out after an error, where the others would not answer.
    """
    import torch

    if fabric.world_size > 1 and torch.distributed.is_initialized():
        fabric.barrier()
        settle()
        torch.distributed.destroy_process_group()


def settle() -> None:
    """Give the threads of gloo the time to let go of the tensors of their last work.

    They need Python's lock for that. Whoever deletes the process group, or a module that has it,
    holds the lock and waits for the threads: without a pause both may wait for ever.
    """
    for _ in range(PAUSES):
        time.sleep(PAUSE)
