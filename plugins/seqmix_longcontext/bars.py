"""The progress of long evaluations on standard error: a bar for people, lines for log files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seqmix.progress import counting_bars

__all__ = ["bar"]


@contextmanager
def bar(total: int, unit: str) -> Iterator[Callable[[str, int], None]]:
    """``advance(what, count)``: what is being done, and how much of ``total`` since the last call.

    Where standard error is no terminal, a line says when something else is begun.
    """
    with counting_bars(unit) as shown:
        row = shown.add_task("starting", total=total)
        last, began = "", time.perf_counter()

        def advance(what: str, count: int) -> None:
            nonlocal last
            if shown.disable and what != last:
                last = what
                sys.stderr.write(f"{time.perf_counter() - began:8.1f} s  {what}\n")
                sys.stderr.flush()
            shown.update(row, advance=count, description=what)

        yield advance
