"""Trainings in processes of their own: several that work together, or one that is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.core.training_cases import cases

from seqmix.training.plan import Training

__all__ = ["FAILED", "SECONDS", "start", "together", "train", "train_known"]

FAILED = 3
SECONDS = 300

# Forked from a process that has imported everything and computed nothing: quick, and safe.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["seqmix.training.trainer", "lightning_fabric"])


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    """A process that runs a function of a module."""
    process = _context.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def together(
    training: Training, out: Path, strategy: str | None, world: int, **options: Any
) -> int:
    """Train in several processes; the worst exit status. One that fails ends the others."""
    port = _free_port()
    started = [
        start(_member, training, out, strategy, rank, world, port, options) for rank in range(world)
    ]
    for process in started:
        process.join(SECONDS)
    statuses = [process.exitcode for process in started]
    for process in started:
        process.kill()
    return max(FAILED if status is None else abs(status) for status in statuses)


def train(training: Training, out: Path, fabric: Any = None, stop: int | None = None) -> None:
    """Train on, and leave the whole model in ``out / "weights.pt"``; or raise at a step."""
    import torch

    from seqmix.training.processes import leave_processes
    from seqmix.training.trainer import Trainer

    torch.set_num_threads(1)
    trainer = Trainer(training, out, fabric=fabric)
    trainer.run(lambda now: _stop(now, stop))
    model = trainer.whole_model()
    if model is not None:
        torch.save(model.state_dict(), out / "weights.pt")
    _write_share(trainer)
    leave_processes(trainer.fabric)


def train_known(training: Training, out: Path) -> None:
    """:func:`train` in a process that knows nothing of the cases yet."""
    with cases():
        train(training, out)


def _write_share(trainer: Any) -> None:
    """How many weights this process has held, in ``share-<rank>.json``."""
    held = [getattr(p, "_local_tensor", p).numel() for p in trainer.model.parameters()]
    path = trainer.out / f"share-{trainer.fabric.global_rank}.json"
    path.write_text(json.dumps([sum(held), trainer.model.parameter_count()]))


def _member(
    training: Training,
    out: Path,
    strategy: str | None,
    rank: int,
    world: int,
    port: int,
    options: dict[str, Any],
) -> None:
    from seqmix.training.fabric import launch_fabric

    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "CUDA_VISIBLE_DEVICES": "",
    }
    failing = options.get("failing", rank)
    stop = options.get("stop") if rank == failing else None
    with cases():
        train(training, out, launch_fabric(training.training.precision, strategy), stop)


def _stop(trainer: Any, step: int | None) -> None:
    if trainer.standing.step == step:
        raise SystemExit(FAILED)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
