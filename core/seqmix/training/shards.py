"""Weights and optimizer states that are written by all processes at once, each its own shares.

They lie in a folder in the format of ``torch.distributed.checkpoint``, which any number of
processes can read. A checkpoint names its folder; two names take turns, so that the folder of the
checkpoint before stays whole until the new one is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from seqmix.errors import CheckpointError
from seqmix.training.processes import first_for_all

__all__ = ["fill_from_shards", "keep_only", "put", "shard_folder", "write_shards"]

TURNS = ("shards-a", "shards-b")


def write_shards(fabric: Any, path: Path, states: dict[str, Any]) -> Path:
    """Write nested mappings of tensors beside the checkpoint ``path``; the folder they are in.

    Every process must call it. CheckpointError when one of them cannot write its shares.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    folder: Path = fabric.broadcast(_free_folder(path))
    first_for_all(fabric, lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        save(states, checkpoint_id=folder)
    except (OSError, CheckpointException) as error:
        raise CheckpointError(
            f"{folder}: cannot be written: {error}; make room, then go on with the same command: "
            "the checkpoint before this one is as it was"
        ) from error
    return folder


def keep_only(path: Path, folder: Path | None) -> None:
    """Remove the folders of a checkpoint that it does not name."""
    for turn in TURNS:
        if (other := _folder(path, turn)) != folder and other.is_dir():
            shutil.rmtree(other)


def shard_folder(path: Path, name: str) -> Path:
    """The folder that a checkpoint names; CheckpointError when it is not there."""
    folder = path.with_name(Path(name).name)
    if not (folder / ".metadata").is_file():
        raise CheckpointError(
            f"{path}: its weights are in '{folder.name}' beside it, which is missing or "
            "incomplete; restore that folder, or start anew (--no-resume)"
        )
    return folder


def fill_from_shards(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Read into a model, sharded in whatever way or not at all, and its optimizer's state."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    stored = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
    weights = model.state_dict()
    states = {
        name: {
            key: torch.zeros(()) if key == "step" else torch.zeros_like(parameter)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
        for name, parameter in model.named_parameters()
        if f"optimizer.{name}.step" in stored
    }
    alone = not torch.distributed.is_initialized()
    load({"model": weights, "optimizer": states}, checkpoint_id=folder, no_dist=alone)
    for name, parameter in model.named_parameters():
        if name in states:
            optimizer.state[parameter] = states[name]


def put(source: Tensor, target: Tensor) -> Tensor:
    """Copy a whole tensor into one that may be sharded; each process takes its own share."""
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        target = cast(DTensor, target)
        mesh, placements = target.device_mesh, target.placements
        share = distribute_tensor(source.to(target.device), mesh, placements, src_data_rank=None)
        target.to_local().copy_(share.to_local())
    else:
        target.copy_(source)
    return target


def _free_folder(path: Path) -> Path:
    """The folder that the present checkpoint does not name."""
    try:
        named = torch.load(path, "cpu", weights_only=True, mmap=True).get("shards")
    except Exception:  # Missing, or of no use: then neither of the two is in use.
        named = None
    first, second = (_folder(path, turn) for turn in TURNS)
    return second if named == first.name else first


def _folder(path: Path, turn: str) -> Path:
    return path.with_name(f"{path.stem}.{turn}")
