"""The keys of a compilation and of a trial: everything that their results depend on."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from seqmix import cache, registry
from seqmix.backend import Backend, Program
from seqmix_ir.graph import Module
from seqmix_ir.passes import Rule
from seqmix_ir.text import show

__all__ = ["compile_key", "trial_key"]


def compile_key(
    program: Program,
    backend: Backend,
    target: str,
    options: Mapping[str, Any],
    rules: Sequence[Rule],
) -> str | None:
    """The key, or None when nothing should be kept: the cache is off, or an option is no data."""
    if not cache.enabled():
        return None
    try:
        settings = json.dumps(options, sort_keys=True)
    except (TypeError, ValueError):
        return None
    return cache.key_of(
        show(program.module),
        program.config.to_json(),
        f"{backend.name} {backend.version} {target}",
        settings,
        " ".join(_rule_name(rule) for rule in rules),
        _seqmix_version(),
        *(_sources_of(name) for name in _packages(program.module, backend)),
        program.weights.digest(),
    )


def trial_key(module: Module, backends: Mapping[str, Backend], asked: Mapping[str, Any]) -> str:
    """The key of a trial: the graph, what is installed, the machine, and its threads.

    ``asked`` is what the backends were told, ready for JSON or not.
    """
    contestants = [f"{b.name} {b.version} {b.probe().devices}" for b in backends.values()]
    installed = sorted(f"{d.metadata['Name']} {d.version}" for d in distributions())
    packages = sorted({name for b in backends.values() for name in _packages(module, b)})
    return cache.key_of(
        show(module),
        repr(sorted(asked.items())),
        *contestants,
        *installed,
        *map(_sources_of, packages),
        *_machine(),
    )


def _machine() -> Iterator[str]:
    """The processor, the devices of torch, and the numbers of threads."""
    import torch

    yield f"{platform.machine()} {os.cpu_count()} {torch.get_num_threads()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    yield next((line for line in lines if line.startswith("model name")), lines[0])
    yield from (torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    yield from (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.endswith("_NUM_THREADS"))


def _packages(module: Module, backend: Backend) -> list[str]:
    """The packages that have a say in a compilation: seqmix, the backend's, and those of plugins.

    A plugin has one by its ops, which may be taken apart, and by its lowerings for the backend.
    """
    names = {"seqmix", "seqmix_ir", type(backend).__module__}
    names |= {type(op.defn).__module__ for graph in module.graphs for op in graph.block.walk()}
    prefix = f"{backend.name}:"
    for lowering in registry.names("lowerings"):
        if lowering.startswith(prefix):
            found = registry.providers("lowerings", lowering)
            names |= {contribution.value.partition(":")[0] for contribution in found}
    return sorted({name.split(".")[0] for name in names})


def _rule_name(rule: Rule) -> str:
    name = getattr(rule, "__qualname__", type(rule).__qualname__)
    return f"{getattr(rule, '__module__', '')}.{name}"


def _seqmix_version() -> str:
    try:
        return version("seqmix")
    except PackageNotFoundError:
        return "not installed"


def _sources_of(module: str) -> str:
    """Size and time of every source file of a package: who edits it must not get old results."""
    spec = importlib.util.find_spec(module.split(".")[0])
    if spec is None:
        return ""
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    if not folders and spec.origin is not None:
        files = [Path(spec.origin)]
    stats = ((path, path.stat()) for path in files)
    return " ".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)
