"""``seqmix train``: a model, a task and a plan out of one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmix.progress import counting_bars, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqmix.training.trainer import Trainer

__all__ = ["train_model"]

INTERRUPTED = 130


def train_model(
    config: Path, out: Path, resume: bool, tensorboard: bool, strategy: str | None, as_json: bool
) -> int:
    """Train to the end and leave ``model``, ``metrics.csv`` and ``report.json`` in ``out``.

    An interrupt leaves the last checkpoint, from which the same command goes on; the exit status is
    then 130. Of several processes (torchrun) the first writes and speaks for all.
    """
    from seqmix.training.fabric import launch_fabric
    from seqmix.training.plan import read_training
    from seqmix.training.processes import first_for_all, leave_processes
    from seqmix.training.trainer import Trainer

    training = read_training(config)
    fabric = launch_fabric(training.training.precision, strategy)
    say = _say if fabric.is_global_zero else _say_nothing
    with progress("preparing model and data") if fabric.is_global_zero else nullcontext():
        trainer = Trainer(training, out, fabric=fabric, tensorboard=tensorboard, resume=resume)
    say(_size(trainer))
    try:
        with _bar(trainer) as watch:
            trainer.run(watch)
    except KeyboardInterrupt:
        say(f"interrupted at step {trainer.standing.step}; the same command goes on")
        return INTERRUPTED
    model = trainer.whole_model()
    first_for_all(fabric, lambda: _finish(trainer, model, as_json))
    leave_processes(fabric)
    return 0


def _finish(trainer: Trainer, model: Any, as_json: bool) -> None:
    """Write the model, with what belongs to it, and the report; print the figures."""
    from seqmix.storage import save_model
    from seqmix.whole_file import write_whole

    folder = trainer.out / "model"
    save_model(model, folder)
    for name, content in trainer.task.files().items():
        write_whole(folder / name, content)
    report = _report(trainer, model)
    text = json.dumps(report, indent=2)
    write_whole(trainer.out / "report.json", f"{text}\n")
    print(text if as_json else _figures(report))


def _report(trainer: Trainer, model: Any) -> dict[str, Any]:
    """What came of it, and what the task has to say."""
    last = trainer.standing.rows[-1]
    return {
        "steps": trainer.standing.step,
        "stopped_early": trainer.standing.stopped,
        "held_out_loss": last["held_out_loss"],
        "held_out_accuracy": last["held_out_accuracy"],
        **trainer.task.report(model),
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
    with counting_bars(hidden=not trainer.fabric.is_global_zero) as bar:
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


def _size(trainer: Trainer) -> str:
    world = trainer.fabric.world_size
    shared = f", {world} processes" if world > 1 else ""
    rows = len(trainer.task.train)
    return f"{trainer.model.parameter_count():,} parameters, {rows:,} rows{shared}"


def _say_nothing(text: str) -> None:
    """What the other processes say."""


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
