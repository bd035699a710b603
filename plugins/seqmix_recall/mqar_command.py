"""What ``seqmix eval mqar`` does with its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.training.sweeps.pool import Executor, Here, Processes
from seqmix.training.sweeps.sweep import Sweep
from seqmix_recall.mqar_results import Results, write_results
from seqmix_recall.mqar_sweep import MQARSweep, costs_of
from seqmix_recall.presets import preset
from seqmix_recall.recipes import PARTS

__all__ = [
    "changed",
    "executor",
    "integers",
    "names",
    "numbers",
    "print_recipes",
    "print_runs",
    "run",
    "shapes",
]

INTERRUPTED = 130
Parsed = TypeVar("Parsed")


def changed(name: str, changes: Mapping[str, Any]) -> MQARSweep:
    """A preset with what was given in its place; ConfigError for what does not fit."""
    options = preset(name).model_dump()
    given = {key: value for key, value in changes.items() if value is not None}
    if "steps" in given or "epochs" in given:
        options |= {"steps": None, "epochs": None}
    if "layers" in given:
        options["layers_of"] = {}
    if "shapes" in given:
        options["mixture"] = []
    if "batch" in given:
        options["shapes"] = [{**shape, "batch": None} for shape in options["shapes"]]
    return build_config(MQARSweep, options | given, "seqmix eval mqar")


def run(sweep: MQARSweep, out: Path, executor: Executor, parquet: bool, keep: bool) -> int:
    """Do what is left, write tables and plots, and say what came of it; the exit status."""
    runs = sweep.runs()
    todo = Sweep(runs, out, parquet=parquet, keep_checkpoints=keep)
    left = len(todo.left())
    _say(f"{len(runs)} runs, {len(runs) - left} of them done, in {out}")
    try:
        report = todo.run(executor)
    except KeyboardInterrupt:
        write_results(todo.report(), out)
        _say(f"interrupted with {len(todo.left())} runs left; the same command goes on")
        return INTERRUPTED
    results = write_results(report, out)
    print(results.text())
    return _complain(results)


def executor(workers: int | None, threads: int, ray: bool, address: str | None) -> Executor:
    """Who does the runs; ConfigError when Ray is asked for and not installed."""
    if ray:
        from seqmix.training.sweeps.on_ray import OnRay

        return OnRay(threads, address, workers)
    if workers == 0:
        return Here()
    return Processes(workers or _usual_workers(threads), threads)


def print_runs(sweep: MQARSweep) -> int:
    """One line per run with its size, and what all of them take together."""
    runs = sweep.runs()
    total = 0
    for one in runs:
        config, plan = one.training.model, one.training.training
        cost = costs_of(config, config.context_length)
        # A step is a forward and a backward pass of twice the operations.
        total += 3 * cost.flops * plan.steps * plan.batch
        print(
            f"{one.name}: {plan.steps} steps of {plan.batch} rows, {cost.parameters:,} parameters, "
            f"{one.labels['state_bytes']:,} bytes of state"
        )
    print(f"{len(runs)} runs, at most {total:.2g} operations")
    return 0


def print_recipes() -> int:
    """Every recipe with what it is."""
    rows = {f"{name}[:N]" if part.size else name: part for name, part in PARTS.items()}
    widest = max(map(len, rows))
    for name, part in rows.items():
        size = f"; N is its {part.size}" if part.size else ""
        print(f"{name:<{widest}}  {part.summary}{size}")
    print(f"{'based[:N]':<{widest}}  short_conv+linear_attention:N, N is 8 by default")
    print("Several may take turns: base_conv+attention. Any mixer of 'seqmix plugins' is one too.")
    return 0


def names(text: str | None) -> list[str] | None:
    """A list of names; None for nothing given."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def integers(option: str, text: str | None) -> list[int] | None:
    """A list of integers; ConfigError for anything else."""
    return _parsed(option, text, int, "integers such as 64,128")


def numbers(option: str, text: str | None) -> list[float] | None:
    """A list of numbers; ConfigError for anything else."""
    return _parsed(option, text, float, "numbers such as 1e-3,1e-2")


def shapes(option: str, text: str | None) -> list[dict[str, int]] | None:
    """A list of lengths with their pairs; ConfigError for anything else."""

    def shape(part: str) -> dict[str, int]:
        length, pairs = part.split(":")
        return {"length": int(length), "pairs": int(pairs)}

    return _parsed(option, text, shape, "tokens and pairs such as 64:4,128:8")


def _parsed(
    option: str, text: str | None, parse: Callable[[str], Parsed], wanted: str
) -> list[Parsed] | None:
    if text is None:
        return None
    try:
        return [parse(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} should be {wanted}, found '{text}'") from error


def _usual_workers(threads: int) -> int:
    """One per GPU, or as many as the CPUs have threads for."""
    import torch

    return torch.cuda.device_count() or max(1, (os.cpu_count() or 1) // threads)


def _complain(results: Results) -> int:
    for row in results.failed:
        _say(f"{row['name']} has {row['status']}: {row['error']}")
    return int(any(row["status"] == "failed" for row in results.failed))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
