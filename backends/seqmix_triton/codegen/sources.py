"""Generated source on disk, where Triton reads it: one file per kernel, imported once.

Files lie in seqmix's cache folder under the hash of their code without comments: a kernel that two
layers or two models share is one file, and Triton finds in its own cache what it compiled for it.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from seqmix import cache
from seqmix.whole_file import write_whole

__all__ = ["code_of", "imported", "source_path"]

_COMMENT = "  # "
_SEAL = "# sha256 "
_modules: dict[str, ModuleType] = {}


def code_of(text: str) -> str:
    """The lines without the comments that say where they come from."""
    return "\n".join(line.partition(_COMMENT)[0] for line in text.splitlines())


def imported(name: str, text: str) -> Any:
    """The function called ``name`` of a generated file; the same object for the same code."""
    key = cache.key_of(code_of(text))
    if key not in _modules:
        _modules[key] = _import(f"seqmix_generated_{key[:16]}", source_path(name, text))
    return getattr(_modules[key], name)


def source_path(name: str, text: str) -> Path:
    """The file that holds this code; it is written where it is missing or damaged."""
    key = cache.key_of(code_of(text))
    home = cache.directory() / "triton" if cache.enabled() else _scratch()
    path = home / f"{name[:60]}_{key[:16]}.py"
    if _is_whole(path, code_of(text)):
        return path
    sealed = f"{text}{_SEAL}{cache.key_of(text)}\n"
    try:
        write_whole(path, sealed)
    except OSError:
        # Where the cache cannot be written, this process has a folder of its own.
        path = _scratch() / path.name
        write_whole(path, sealed)
    return path


def _is_whole(path: Path, code: str) -> bool:
    """Whether a file holds the code and is as it was written; comments may be another model's."""
    try:
        text, _, seal = path.read_text(encoding="utf-8").rpartition(_SEAL)
    except (OSError, UnicodeDecodeError):
        return False
    return seal.strip() == cache.key_of(text) and code_of(text) == code


_own: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> Path:
    """A folder that goes with this process."""
    if not _own:
        _own.append(tempfile.TemporaryDirectory(prefix="seqmix-triton-"))
    return Path(_own[0].name)


def _import(module_name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
