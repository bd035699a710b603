"""What executables have in common: they check their inputs, and describe themselves on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from seqmix import registry
from seqmix.backend import Report
from seqmix.errors import BackendError, did_you_mean
from seqmix.inputs import InputCheck, check_inputs
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError, read_json, read_text
from seqmix.whole_file import write_whole
from seqmix_ir.graph import Module
from seqmix_ir.text import parse, show
from seqmix_ir.verifier import verify

__all__ = [
    "MANIFEST",
    "MODULE_FILE",
    "InputCheck",
    "check_inputs",
    "check_options",
    "read_manifest",
    "read_module",
    "saved_file",
    "write_manifest",
    "write_module",
]

MANIFEST = "seqmix.json"
"""The file that names the backend of a saved executable."""

MODULE_FILE = "module.txt"
FORMAT = 1

_LONGEST = 4 << 20
"""Bytes of a module: one of thirty layers has 100 kB, and reading takes seconds for a megabyte."""

_REPORT = TypeAdapter(Report)
_FIELDS = [field.name for field in dataclasses.fields(Report)]


def check_options(backend: str, options: Mapping[str, Any], known: Mapping[str, type]) -> None:
    """BackendError for an option that is not in ``known``, or is not of its type."""
    for name, value in options.items():
        if name not in known:
            raise BackendError(
                f"backend '{backend}' has no option '{name}'{did_you_mean(name, known)}; "
                f"known: {', '.join(known) or 'none'}"
            )
        if not isinstance(value, known[name]):
            raise BackendError(
                f"backend '{backend}': option '{name}' should be {known[name].__name__}, "
                f"found {value!r}"
            )


def write_manifest(directory: Path | str, report: Report, **more: Any) -> None:
    """Write ``seqmix.json``: the backend's name, its report, and whatever else ``load`` needs."""
    content = {"format": FORMAT, "backend": report.backend, "report": dataclasses.asdict(report)}
    text = json.dumps({**content, **more}, indent=2) + "\n"
    write_whole(Path(directory) / MANIFEST, text)


def saved_file(directory: Path, name: str) -> Path:
    """A file of a saved folder, there or not; BackendError for a link that leads out of it."""
    try:
        return file_inside(directory, name)
    except UnreadableError as error:
        raise BackendError(f"{directory / name}: {error}; compile the model again") from error


def read_manifest(directory: Path) -> tuple[Report, dict[str, Any]]:
    """The report, and the whole of ``seqmix.json``; BackendError when it is missing or broken."""
    path = directory / MANIFEST
    if not path.exists():
        raise BackendError(f"{directory}: has no {MANIFEST}; expected what Executable.save wrote")
    try:
        content = read_json(saved_file(directory, MANIFEST))
    except UnreadableError as error:
        raise BackendError(f"{path}: {error}; compile the model again") from error
    if not isinstance(content, dict) or "format" not in content:
        raise BackendError(f"{path}: is no manifest: names no format; compile the model again")
    if content["format"] != FORMAT:
        raise BackendError(
            f"{path}: format {content['format']!r} is not {FORMAT}; compile the model again"
        )
    return _report(path, content.get("report")), content


def write_module(directory: Path | str, module: Module) -> None:
    """Write a module as text, ``module.txt``."""
    write_whole(Path(directory) / MODULE_FILE, show(module))


def read_module(directory: Path) -> Module:
    """Read what :func:`write_module` wrote; ops of plugins come through the registry.

    BackendError when the file cannot be read, IRError when it is not well-formed or breaks a rule.
    """
    path = directory / MODULE_FILE
    try:
        text = read_text(saved_file(directory, MODULE_FILE), _LONGEST)
    except UnreadableError as error:
        raise BackendError(f"{path}: {error}; compile the model again") from error
    module = parse(text, registry.op_table(), str(path))
    verify(module)
    return module


def _report(path: Path, found: Any) -> Report:
    """A report whose fields have the types that they should have."""
    unknown = sorted(set(found) - set(_FIELDS)) if isinstance(found, dict) else []
    try:
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)[:200]}")
        return _REPORT.validate_python(found)
    except ValueError as error:
        reason = str(error).replace("\n", " ")[:300]
        raise BackendError(
            f"{path}: 'report' is missing or broken: {reason}; compile the model again"
        ) from error
