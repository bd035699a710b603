"""``seqmix eval recall-gap``: how much of the gap between two models is recall from the context."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from seqmix_recall.gap_run import Watch

__all__ = ["evaluate_gap"]

INTERRUPTED = 130


def evaluate_gap(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="What is judged: a model, or its scores (.npy).")
    ],
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="The better one, often with attention.")
    ],
    text: Annotated[
        list[Path],
        typer.Option(help="Text to score, repeat for more; or one file of tokens (.bin, .npy)."),
    ],
    train: Annotated[
        list[Path],
        typer.Option(help="What was trained on: text, tokens (.bin, .npy), or counts (.npz)."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of this evaluation.")] = Path(
        "out/recall_gap"
    ),
    length: Annotated[int, typer.Option(min=1, help="Targets of a window.")] = 1024,
    threshold: Annotated[
        int, typer.Option(min=1, help="AR hits are bigrams that occur less often in training.")
    ] = 1250,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many windows.")
    ] = None,
    documents: Annotated[
        bool,
        typer.Option(help="Keep windows within documents, and draw documents for the errors."),
    ] = False,
    split: Annotated[
        str | None, typer.Option(help="What separates documents within a text file.")
    ] = None,
    separator: Annotated[
        int | None, typer.Option(min=0, help="The id behind every document; by default the eos.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows that are scored at a time.")] = 8,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that are read at a time, the state carried on."),
    ] = None,
    backend: Annotated[str, typer.Option("--backend", "-b", help="Of both models.")] = "torch",
    rope: Annotated[
        str | None, typer.Option(help="Extend the context of both: yarn:2, ntk:4, ..")
    ] = None,
    passages: Annotated[int, typer.Option(min=0, help="Windows that the page shows.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap and the passages.")] = 0,
    resamples: Annotated[int, typer.Option(min=2, help="Of the bootstrap.")] = 1000,
) -> int:
    """Measure how much of the gap between two models is associative recall (Zoology, section 3).

    Tokens whose bigram stood earlier in the window and is rare in training (AR hits) are compared
    with all others. Leaves a table, JSON, a histogram and a page that shows passages with the
    tokens on which the models differ. The same command goes on where it was stopped.
    """
    from seqmix.cli.loading import check_backend_name
    from seqmix_recall.gap_report import table_lines
    from seqmix_recall.gap_run import GapRequest, run_gap

    check_backend_name(backend)
    request = GapRequest(
        model,
        reference,
        text,
        train,
        out,
        length=length,
        threshold=threshold,
        windows=windows,
        documents=documents,
        split=split,
        separator=separator,
        batch=batch,
        chunk=chunk,
        backend=backend,
        rope=rope,
        passages=passages,
        seed=seed,
        resamples=resamples,
    )
    try:
        with _bar() as watch:
            report = run_gap(request, watch)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on\n")
        return INTERRUPTED
    print("\n".join(table_lines(report)))
    sys.stderr.write(f"{out}: recall_gap.csv, .json, .png and .html\n")
    return 0


@contextmanager
def _bar() -> Iterator[Watch]:
    """A bar for each thing that is done, on standard error; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    rows: dict[str, TaskID] = {}

    def watch(what: str, done: int, total: int | None) -> None:
        # Not before: reading models has a display of its own.
        bar.start()
        if what not in rows:
            rows[what] = bar.add_task(what, total=total)
        bar.update(rows[what], advance=done)

    try:
        yield watch
    finally:
        bar.stop()
