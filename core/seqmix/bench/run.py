"""Measuring: case by case, in one run, going on where a run with the same settings ended."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from seqmix.bench.child import Child
from seqmix.bench.field import Field, Start
from seqmix.bench.result import Result, Settings
from seqmix.bench.spec import Spec, check_specs, parse_backend, parse_peer
from seqmix.config import ModelConfig
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.progress import counted

__all__ = ["PHASES", "measure", "specs_of"]

PHASES = ("prefill", "decode")
_PACKAGES = ("seqmix", "torch", "onnxruntime", "apache-tvm", "triton", "transformers")


def measure(
    config: ModelConfig,
    settings: Settings,
    lengths: Sequence[int],
    phases: Sequence[str] = PHASES,
    before: Result | None = None,
    save: Callable[[Result], None] = lambda result: None,
    start: Start = Child,
) -> Result:
    """Measure every phase at every length; ``save`` gets the result so far after each case.

    ``before`` holds cases of the same settings that are not measured again. A contestant that
    fails is a row with its reason. ConfigError for lengths that the model has no context for, and
    for contestants that cannot be. ``start`` makes the process of a contestant.
    """
    specs = specs_of(settings)
    _check_lengths(config, lengths, settings.tokens)
    result = before or Result(settings, _machine(settings.threads), _parameters(config))
    todo = [(p, n) for n in sorted(set(lengths)) for p in phases if result.case(p, n) is None]
    if not todo:
        return result
    with ExitStack() as stack:
        field = Field(stack, specs, settings, config, start)
        result.entries = field.prepare()
        result.ceilings = field.prepare_limits()
        for number, (phase, length) in enumerate(todo):
            counted(f"{phase} {length}", number, len(todo))
            result.cases.append(field.case(phase, length))
            save(result)
    return result


def specs_of(settings: Settings) -> list[Spec]:
    """The contestants in order; ConfigError or PluginError for one that cannot be."""
    found = [*map(parse_backend, settings.backends), *map(parse_peer, settings.peers)]
    check_specs(found)
    return found


def _check_lengths(config: ModelConfig, lengths: Sequence[int], tokens: int) -> None:
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"lengths should be positive numbers of tokens, found {list(lengths)}")
    most = max(lengths) + tokens
    if most > config.context_length:
        raise ConfigError(
            f"length {max(lengths)} and {tokens} tokens behind it are more than the model's "
            f"context of {config.context_length}; measure less, or extend it with --rope"
        )


def _parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return Model(config).parameter_count()


def _machine(threads: int) -> dict[str, str]:
    """What a reader must know to compare with another machine."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(threads),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return found | {name: v for name in _PACKAGES if (v := _version(name))}


def _processor() -> str:
    """The name that Linux gives, else what Python knows."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
