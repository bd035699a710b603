"""A spinner with the time, for whatever takes longer than a moment; silent where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["progress"]


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on standard error that something is being done."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        bar.add_task(what, total=None)
        yield
