"""``seqmix ir``: the graph as text, or both of its stages as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seqmix import hooks
from seqmix.cli.loading import check_backend_name, load_checkpoint, load_model, pick_backend
from seqmix.errors import ConfigError, WriteError, did_you_mean
from seqmix.progress import progress
from seqmix.whole_file import write_whole

if TYPE_CHECKING:
    from seqmix.backend import Backend
    from seqmix_ir.graph import Module

__all__ = ["print_ir", "write_page"]

_STAGES = ("captured", "legalized")


def print_ir(
    source: str, stage: str, backend: str, rope: str | None, locs: bool, out: Path | None
) -> None:
    """Print the module at a stage, or write it to a file."""
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import lower
    from seqmix_ir.text import show

    if stage not in _STAGES:
        raise ConfigError(
            f"no stage '{stage}'{did_you_mean(stage, _STAGES)}; known: {', '.join(_STAGES)}"
        )
    if out is not None:
        _check_folder(out)
    if stage == "legalized":
        check_backend_name(backend)
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        program = program_of(model)
    module = program.module
    if stage == "legalized":
        chosen, _ = pick_backend(backend, program)
        legality = BackendLegality(chosen, chosen.default_target())
        module, _ = lower(module, legality, hooks.rewrites(chosen.name))
    text = show(module, locs=locs)
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text)


def write_page(
    source: str, backend: str, rope: str | None, html: Path, out: Path | None = None
) -> int:
    """Write the captured and the legalized module as one page; 1 if some op cannot be run."""
    from seqmix.compile import program_of

    if out is not None:
        raise ConfigError("-o writes text and --html a page; give one of them")
    _check_folder(html)
    if html.exists() and not html.is_file():
        raise ConfigError(f"{html} is no file; choose another name")
    check_backend_name(backend)
    checkpoint = load_checkpoint(source, rope)
    model = load_model(checkpoint)
    with progress("capturing"):
        program = program_of(model)
    chosen, _ = pick_backend(backend, program)
    text, lost = _page(checkpoint.config.name, program.module, chosen)
    _write(html, text)
    return int(lost)


def _page(name: str, module: Module, backend: Backend) -> tuple[str, bool]:
    """The page, and whether the backend cannot run the module."""
    from seqmix.choose import BackendLegality
    from seqmix.page import Subject, lower_as_far, render

    legality = BackendLegality(backend, backend.default_target())
    lowered, record = lower_as_far(module, legality, hooks.rewrites(backend.name))
    subject = Subject(name, backend.name, legality.target, record)
    return render(module, lowered, subject, legality.supports), bool(record.impossible)


def _check_folder(file: Path) -> None:
    if not (folder := file.absolute().parent).is_dir():
        raise ConfigError(f"{file}: there is no folder {folder}; make it first")


def _write(file: Path, text: str) -> None:
    """Write a file, which appears whole or not at all; ConfigError where that cannot be."""
    try:
        # A name may hold half of a surrogate pair, which UTF-8 has no bytes for.
        write_whole(file, text.encode("utf-8", "backslashreplace"))
    except WriteError as error:
        raise ConfigError(str(error)) from error
