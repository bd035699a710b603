"""Checkpoints of trainings: what is in them, and whether they belong to this training.

A checkpoint is one file with everything by name, so that any number of processes can go on from it.
Where processes hold shares of the weights, these lie in a folder beside the file, which names it:
see :mod:`seqmix.training.shards`. Either way the file is what counts, and it is replaced whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from seqmix.errors import CheckpointError
from seqmix.reading import UnreadableError, parse_json
from seqmix.training.plan import Training
from seqmix.training.processes import first_for_all
from seqmix.training.sharding import is_sharded
from seqmix.training.shards import fill_from_shards, keep_only, put, shard_folder, write_shards
from seqmix.training.task import Task
from seqmix.whole_file import whole_file

__all__ = ["read_stored", "write_stored"]

FORMAT = 2
ANEW = "start anew (--no-resume)"


def write_stored(
    fabric: Any,
    path: Path,
    training: Training,
    task: Task,
    model: nn.Module,
    optimizer: Optimizer,
    kept: dict[str, Any],
) -> None:
    """Write weights, the optimizer's state and plain values ``kept``; all of it or nothing.

    Every process must call it, and none goes on before the checkpoint is there. CheckpointError
    when it cannot be written; the one before it then still stands.
    """
    content = {
        "format": FORMAT,
        "training": training.model_dump_json(),
        "data": task.fingerprint(),
        **kept,
    }
    if is_sharded(model):
        folder = write_shards(fabric, path, _states(model, optimizer))
        content["shards"] = folder.name
        first_for_all(fabric, lambda: _write(path, content))
        first_for_all(fabric, lambda: keep_only(path, folder))
        return
    first_for_all(fabric, lambda: _write(path, content | _states(model, optimizer)))
    first_for_all(fabric, lambda: keep_only(path, None))


def read_stored(
    path: Path, training: Training, task: Task, model: nn.Module, optimizer: Optimizer
) -> dict[str, Any]:
    """Fill model and optimizer and return what was kept with them.

    CheckpointError when the checkpoint is damaged, or of another training.
    """
    content = _content(path)
    _same(path, content.pop("training", None), training)
    if content.pop("data", None) != task.fingerprint():
        raise CheckpointError(f"{path}: the data has changed since; restore it, or {ANEW}")
    try:
        if "shards" in content:
            fill_from_shards(shard_folder(path, content.pop("shards")), model, optimizer)
        else:
            _fill(content.pop("model"), content.pop("optimizer"), model, optimizer)
    except CheckpointError:
        raise
    except Exception as error:  # Whatever the libraries say of files that are damaged inside.
        raise _damaged(path, error) from error
    return content


def _content(path: Path) -> dict[str, Any]:
    """What the file holds, its tensors still on the disk."""
    try:
        # Tensors, numbers and text only: a checkpoint of somebody else cannot run anything.
        content: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=True)
        found = content.pop("format")
    except Exception as error:
        raise _damaged(path, error) from error
    if found != FORMAT:
        raise CheckpointError(f"{path}: is of format {found}, expected {FORMAT}; {ANEW}")
    return content


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{path}: cannot be read, it is damaged or incomplete: {reason}; restore a copy of it, or "
        f"{ANEW}"
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        with whole_file(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch makes its own errors of those of files.
        cause = error.__cause__ or error.__context__ or error
        raise CheckpointError(
            f"{path}: cannot be written: {cause}; make room, then go on with the same command: "
            "the checkpoint before this one is as it was"
        ) from error


def _states(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights by name, and what the optimizer has for each."""
    known = {name: optimizer.state[p] for name, p in model.named_parameters()}
    return {"model": model.state_dict(), "optimizer": {n: s for n, s in known.items() if s}}


@torch.no_grad()
def _fill(
    weights: dict[str, Any], states: dict[str, Any], model: nn.Module, optimizer: Optimizer
) -> None:
    """Copy into the model, whether in one piece or sharded, and give the optimizer its state."""
    for name, tensor in model.state_dict().items():
        put(weights[name], tensor)
    for name, parameter in model.named_parameters():
        if name not in states:
            continue
        optimizer.state[parameter] = {
            key: value.clone() if value.ndim == 0 else put(value, torch.empty_like(parameter))
            for key, value in states[name].items()
        }


def _same(path: Path, found: Any, training: Training) -> None:
    try:
        old = parse_json(found if isinstance(found, str) else "")
    except UnreadableError as error:
        raise _damaged(path, error) from error
    new = json.loads(training.model_dump_json())
    if old == new:
        return
    changed = ", ".join(sorted(_differences(old, new, "")))
    raise CheckpointError(
        f"{path}: was made by another training ({changed}); choose another folder, or {ANEW}"
    )


def _differences(found: Any, expected: Any, place: str) -> list[str]:
    """Every place where two JSON values differ, with both."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return [
            line
            for key in {*found, *expected}
            for line in _differences(found.get(key), expected.get(key), f"{place}.{key}")
        ]
    return [] if found == expected else [f"{place.lstrip('.')}: {found}, now {expected}"]
