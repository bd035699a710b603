"""``seqmix train``: a model, a task and a plan out of one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from seqmix.cli.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqmix.training.trainer import Trainer

__all__ = ["train_model"]

INTERRUPTED = 130


def train_model(config: Path, out: Path, resume: bool, tensorboard: bool, as_json: bool) -> int:
    """Train to the end and leave ``model``, ``metrics.csv`` and ``report.json`` in ``out``.

    An interrupt leaves the last checkpoint, from which the same command goes on; the exit status is
    then 130.
    """
    from seqmix.storage import save_model
    from seqmix.training.plan import read_training
    from seqmix.training.trainer import Trainer

    training = read_training(config)
    with progress("preparing model and data"):
        trainer = Trainer(training, out, tensorboard=tensorboard, resume=resume)
    _say(f"{trainer.model.parameter_count():,} parameters, {len(trainer.task.train):,} rows")
    try:
        with _bar(trainer) as watch:
            trainer.run(watch)
    except KeyboardInterrupt:
        _say(f"interrupted at step {trainer.standing.step}; the same command goes on")
        return INTERRUPTED
    save_model(trainer.model, out / "model")
    for name, content in trainer.task.files().items():
        (out / "model" / name).write_bytes(content)
    report = _report(trainer)
    text = json.dumps(report, indent=2)
    (out / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text if as_json else _figures(report))
    return 0


def _report(trainer: Trainer) -> dict[str, Any]:
    """What came of it, and what the task has to say."""
    last = trainer.standing.rows[-1]
    return {
        "steps": trainer.standing.step,
        "stopped_early": trainer.standing.stopped,
        "held_out_loss": last["held_out_loss"],
        "held_out_accuracy": last["held_out_accuracy"],
        **trainer.task.report(trainer.model),
    }


def _figures(report: dict[str, Any]) -> str:
    early = ", stopped early" if report["stopped_early"] else ""
    return (
        f"step {report['steps']}{early}: held out loss {report['held_out_loss']:.4f}, "
        f"accuracy {report['held_out_accuracy']:.4f}"
    )


@contextmanager
def _bar(trainer: Trainer) -> Iterator[Callable[[Trainer], None]]:
    """A bar with the latest figures on standard error; nothing where nobody looks."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        row = bar.add_task("training", total=trainer.plan.steps, completed=trainer.standing.step)

        def watch(now: Trainer) -> None:
            bar.update(row, completed=now.standing.step, description=_latest(now))

        yield watch


def _latest(trainer: Trainer) -> str:
    rows = trainer.standing.rows
    if not rows:
        return "training"
    tested = [r["held_out_accuracy"] for r in rows if r["held_out_accuracy"] is not None]
    accuracy = f", accuracy {tested[-1]:.3f}" if tested else ""
    return f"loss {rows[-1]['loss']:.4f}{accuracy}"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
