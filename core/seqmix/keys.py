"""The key of a compilation: everything that its result depends on."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from seqmix import cache
from seqmix.backend import Backend, Program
from seqmix_ir.passes import Rule
from seqmix_ir.text import show

__all__ = ["compile_key"]


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
        *(_sources_of(name) for name in ("seqmix", "seqmix_ir", type(backend).__module__)),
        program.weights.digest(),
    )


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
