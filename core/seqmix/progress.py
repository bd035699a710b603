"""Progress on standard error of whatever takes longer than a moment; silent where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["counting_bars", "progress"]


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show that something is being done, and for how long."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        bar.add_task(what, total=None)
        yield


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
