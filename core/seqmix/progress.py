"""Progress on standard error of whatever takes longer than a moment; silent where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar

__all__ = ["counted", "counting_bars", "progress"]


Shown: TypeAlias = Callable[[str, int, int], None]

_SHOWN: ContextVar[Shown | None] = ContextVar("shown", default=None)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show that something is being done, for how long, and how far it is by :func:`counted`."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}{task.fields[part]}"),
        _BarOfParts(),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None, part="")

        def show(part: str, done: int, total: int) -> None:
            count = f" {done} of {total}" if total else ""
            bar.update(task, part=f": {part}{count}", completed=done, total=total or None)

        before = _SHOWN.set(show)
        try:
            yield
        finally:
            _SHOWN.reset(before)


def counted(part: str, done: int, total: int) -> None:
    """Say how far a part of what is being done is; a total of 0 says that nobody can count it.

    Without effect where no :func:`progress` is shown.
    """
    show = _SHOWN.get()
    if show is not None:
        show(part, done, total)


class _BarOfParts(BarColumn):
    """A bar, once there is something to count."""

    def render(self, task: Task) -> ProgressBar:
        """The bar; of no width while nothing is counted."""
        bar = super().render(task)
        bar.width = self.bar_width if task.total else 0
        return bar


def counting_bars(unit: str = "", *, transient: bool = True, hidden: bool = False) -> Progress:
    """Bars that count what is done, with the time it took and the time it will take.

    They show while the context of what is returned lasts, and stay there unless ``transient``.
    Where nobody looks, or when they are ``hidden``, ``disable`` is set.
    """
    console = Console(stderr=True)
    counted = (MofNCompleteColumn(), TextColumn(unit)) if unit else (MofNCompleteColumn(),)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counted,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=hidden or not console.is_terminal,
    )
