"""Loops of small kernels: a second thread costs more than it brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["SMALL", "one_thread"]

SMALL = 1 << 20
"""Multiply-adds of one step up to which one thread is faster than two."""


@contextmanager
def one_thread(step: int) -> Iterator[None]:
    """Run torch's CPU kernels on one thread within, if a step has few multiply-adds.

    Waking a thread takes 10 to 30 us, which each of the dozen kernels of a step would pay: the
    loop of an sLSTM (4 heads of 128) takes a third of the time. The number of threads is that of
    the whole process, and is what it was afterwards.
    """
    threads = torch.get_num_threads()
    if step > SMALL or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
