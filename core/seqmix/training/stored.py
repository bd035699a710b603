"""Checkpoints of trainings: what is in them, and whether they belong to this training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from seqmix.errors import CheckpointError
from seqmix.training.plan import Training
from seqmix.training.task import Task

__all__ = ["read_stored", "write_stored"]

FORMAT = 1


def write_stored(
    fabric: Any,
    path: Path,
    training: Training,
    task: Task,
    parts: dict[str, Any],
    kept: dict[str, Any],
) -> None:
    """Write modules and optimizers ``parts`` with plain values ``kept``; all of it or nothing."""
    part = path.with_name(f".{path.name}.part")
    about = {"format": FORMAT, "training": _described(training), "data": task.fingerprint()}
    fabric.save(part, {**parts, **about, **kept})
    if fabric.is_global_zero:
        part.replace(path)
    fabric.barrier()


def read_stored(
    fabric: Any, path: Path, training: Training, task: Task, parts: dict[str, Any]
) -> dict[str, Any]:
    """Fill ``parts`` and return what was kept; CheckpointError when it is of another training."""
    try:
        # Tensors, numbers and text only: a checkpoint of somebody else cannot run anything.
        content = torch.load(path, map_location="cpu", weights_only=True)
        found, data = content["training"], content["data"]
    except Exception as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}; start anew without it (--no-resume)"
        ) from error
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {content.get('format')} is not {FORMAT}; start anew (--no-resume)"
        )
    _same(path, json.loads(found), json.loads(_described(training)))
    if data != task.fingerprint():
        raise CheckpointError(
            f"{path}: the data has changed since; restore it, or start anew (--no-resume)"
        )
    kept: dict[str, Any] = fabric.load(path, parts, weights_only=True)
    return kept


def _described(training: Training) -> str:
    return training.model_dump_json()


def _same(path: Path, found: Any, expected: Any) -> None:
    if found == expected:
        return
    changed = ", ".join(sorted(_differences(found, expected, "")))
    raise CheckpointError(
        f"{path}: was made by another training ({changed}); choose another folder, or start anew "
        "(--no-resume)"
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
