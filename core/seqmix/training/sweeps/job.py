"""What a worker does with a run: train, or go on training, and leave the result in its folder.

A folder has the trainer's files, and then one of ``result.json``, with which the run is finished,
and ``failure.txt``, with which it is tried again by the next call. The result depends on nothing
but the training; the seconds stand apart, in ``seconds.json``.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from seqmix.config import Kind
from seqmix.errors import ConfigError
from seqmix.lock import LockFile
from seqmix.reading import UnreadableError, read_json
from seqmix.training.plan import Training
from seqmix.whole_file import write_whole

if TYPE_CHECKING:
    from torch import nn

    from seqmix.training.task import Task
    from seqmix.training.trainer import Trainer

__all__ = ["FAILURE", "RESULT", "SECONDS", "Job", "Watch", "perform", "read_result"]

RESULT = "result.json"
SECONDS = "seconds.json"
FAILURE = "failure.txt"
CHECKPOINTS = "training.ckpt"
LOCK = ".lock"
PATIENCE = 60.0
"""Seconds to wait for the folder: a worker that was killed lets go of it at once."""

Watch: TypeAlias = Callable[[int, int], None]
"""Told the steps made and those planned, after every step."""


@dataclass(frozen=True)
class Job:
    """A run as it is sent to a worker: plain text and numbers."""

    name: str
    training: str
    """A :class:`~seqmix.training.plan.Training` as JSON."""
    folder: str
    identity: str
    keep: bool
    """Whether the last checkpoint stays when the run is finished."""


def perform(job: Job, watch: Watch | None = None) -> str | None:
    """Do what is left of a run; the first line of what went wrong, None if nothing did.

    A training that diverges is finished: it would again. Anything else that is raised is kept with
    its traceback and leaves the run unfinished.
    """
    folder = Path(job.folder)
    lock = LockFile(folder / LOCK)
    try:
        if not lock.take(PATIENCE):
            raise ConfigError(f"{folder}: another process is at work on this run; wait for its end")
        return _finish(job, folder, watch)
    except Exception as error:
        with suppress(OSError):  # On a full disk there is no room for this either.
            write_whole(folder / FAILURE, traceback.format_exc())
        return _first_line(error, folder)
    finally:
        lock.release()


def read_result(folder: Path, identity: str) -> dict[str, Any] | None:
    """The result of a finished run of this identity; ConfigError for a file that is none."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = read_json(path)
        same = found["identity"] == identity
    except (UnreadableError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: is no result: {error}; remove it") from error
    return found if same else None


def _finish(job: Job, folder: Path, watch: Watch | None) -> str | None:
    from seqmix.training.trainer import Trainer, TrainingError

    (folder / FAILURE).unlink(missing_ok=True)
    found = read_result(folder, job.identity)
    if found is not None:
        return str(found["error"]) if found["error"] else None
    training = Training.model_validate_json(job.training)
    started, error = time.monotonic(), None
    trainer = Trainer(training, folder, task=_task(training.task.model_dump_json()))
    begun = trainer.standing.step
    try:
        trainer.run(_told(watch))
        figures = _figures(trainer)
    except TrainingError as diverged:
        error = _first_line(diverged, folder)
        figures = {}
    _write(job, folder, trainer, error, figures)
    took = {"seconds": time.monotonic() - started, "steps": trainer.standing.step - begun}
    write_whole(folder / SECONDS, json.dumps(took) + "\n")
    if not job.keep:
        _remove_checkpoints(folder)
    return error


def _told(watch: Watch | None) -> Callable[[Trainer], None] | None:
    if watch is None:
        return None
    return lambda trainer: watch(trainer.standing.step, trainer.plan.steps)


@lru_cache(maxsize=1)
def _task(kind: str) -> Task:
    """The task of a run; neighbours in a sweep often share it, and its rows are drawn once."""
    from seqmix.training.task import build_task

    return build_task(Kind.model_validate_json(kind))


def _figures(trainer: Trainer) -> dict[str, Any]:
    """What there is to say of a model that was trained to the end."""
    last = trainer.standing.rows[-1]
    return {
        "stopped_early": trainer.standing.stopped,
        "held_out_loss": last["held_out_loss"],
        "held_out_accuracy": last["held_out_accuracy"],
        "weights": _weights_digest(trainer.model),
        "report": trainer.task.report(trainer.model),
    }


def _write(
    job: Job, folder: Path, trainer: Trainer, error: str | None, figures: Mapping[str, Any]
) -> None:
    content = {
        "name": job.name,
        "identity": job.identity,
        "status": "diverged" if error else "finished",
        "error": error,
        "steps": trainer.standing.step,
        "tokens": trainer.standing.tokens,
        "parameters": trainer.model.parameter_count(),
        **figures,
    }
    write_whole(folder / RESULT, json.dumps(content, indent=1) + "\n")


def _weights_digest(model: nn.Module) -> str:
    """The start of a sha256 over all weights: equal ones were trained to the bit alike."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(name.encode())
        digest.update(flat.view(_bytes_of(flat)).numpy().tobytes())
    return digest.hexdigest()[:16]


def _bytes_of(tensor: Any) -> Any:
    import torch

    return torch.uint8 if tensor.dtype != torch.bool else torch.bool


def _remove_checkpoints(folder: Path) -> None:
    """The checkpoint is a file, or a folder where several processes wrote it."""
    import shutil

    path = folder / CHECKPOINTS
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _first_line(error: BaseException, folder: Path) -> str:
    """What an error says, without the folder: tables of one sweep are equal wherever they lie."""
    text = str(error).replace(f"{folder}: ", "").strip()
    first = text.splitlines()[0] if text else "no message"
    return f"{type(error).__name__}: {first}"
