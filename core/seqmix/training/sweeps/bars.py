"""Progress of a sweep on standard error: runs that are done, and steps of those at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from seqmix.progress import counting_bars

__all__ = ["Bars", "show_bars"]


class Bars:
    """A bar for all runs, and one below it for each run that has told of itself."""

    def __init__(self, progress: Progress, names: Sequence[str], done: int, total: int) -> None:
        """``names`` are those of the runs that are left; ``done`` of ``total`` are finished."""
        self._progress = progress
        self._names = names
        self._failed = 0
        self._all = progress.add_task("runs", total=total, completed=done)
        self._own: dict[int, TaskID] = {}

    def told(self, number: int, step: int, steps: int) -> None:
        """Show where a run stands."""
        if number not in self._own:
            self._own[number] = self._progress.add_task(self._names[number], total=steps)
        self._progress.update(self._own[number], completed=step, total=steps)

    def ended(self, number: int, error: str | None) -> None:
        """Count a run, and take its bar away."""
        if (own := self._own.pop(number, None)) is not None:
            self._progress.remove_task(own)
        self._failed += error is not None
        failed = f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._all, advance=1, description=f"runs{failed}")


@contextmanager
def show_bars(names: Sequence[str], total: int) -> Iterator[Bars]:
    """Bars as long as the context lasts; nothing is shown where nobody looks."""
    with counting_bars() as progress:
        yield Bars(progress, names, total - len(names), total)
