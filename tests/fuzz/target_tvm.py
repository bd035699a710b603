"""The folder of the tvm backend, without and with torch. Its library is native code and no target:
here it is a text, which a loader must refuse after everything else was looked at.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tests.core import tiny
from tests.fuzz.edits import Files
from tests.fuzz.target import Target

from seqmix.backend import Report
from seqmix.errors import BackendError
from seqmix.interface import write_manifest
from seqmix_tvm.compiled_model import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    FolderError,
    check_folder,
    read_arrays,
    seal_of,
)

__all__ = ["LOAD", "TARGET"]

MODULE = """seqmix 1
module @m {
  graph @forward(%x: f32[S, 4]) dims(S >= 1) -> (y) {
    %y = neg(%x) : f32[S, 4]
    return %y
  }
}
"""


def make(folder: Path) -> None:
    save_file({"w": np.ones((2, 3), "f4"), "b": np.zeros(2, "i8")}, folder / WEIGHTS)
    (folder / "forward.so").write_bytes(b"no library")
    (folder / "module.txt").write_text(MODULE, encoding="utf-8")
    (folder / "config.json").write_text(tiny.config().to_json(), encoding="utf-8")
    write_manifest(folder, Report("tvm", "cpu"))
    names = (WEIGHTS, "forward.so", "module.txt", "config.json", "seqmix.json")
    files = {name: _digest((folder / name).read_bytes()) for name in names}
    manifest = {**_manifest(), "files": files}
    manifest["seal"] = seal_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def _manifest() -> dict[str, Any]:
    kind = {"dtype": "f32", "shape": ["S", "4"]}
    entry = {"library": "forward.so", "stored": ["w", "b"], "inputs": {"x": kind}}
    here = {"system": platform.system(), "machine": platform.machine()}
    return {
        "format": FORMAT,
        "seqmix": "0",
        "tvm": _version(),
        "target": {**here, "mcpu": "any", "features": [], "kind": "llvm"},
        "model": {"name": "m", "vocab_size": 4, "eos": [1], "dtype": "f32", "context_length": 8},
        "initial": {"state.0.k": {"axes": ["B", "P", 4], "fill": 0}},
        "entries": {"forward": {**entry, "outputs": {"y": kind}}},
    }


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return "0.27"


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def reseal(files: Files, choice: int) -> Files:
    """Most of the time the manifest is given the checksums of what is there."""
    held = files.get(MANIFEST)
    if choice % 4 == 0 or not isinstance(held, bytes):
        return files
    try:
        manifest = json.loads(held)
        known = manifest["files"]
        for name in known:
            if isinstance(content := files.get(name), bytes):
                known[name] = _digest(content)
        manifest["seal"] = seal_of(manifest)
        return {**files, MANIFEST: json.dumps(manifest).encode()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return files


def load(folder: Path) -> None:
    """As ``run.py`` does; its errors are of a class of their own, which needs no seqmix."""
    try:
        check_folder(folder)
        for _ in read_arrays(folder / WEIGHTS):
            pass
    except FolderError as error:
        raise BackendError(str(error)) from error


def load_with_torch(folder: Path) -> None:
    from seqmix_tvm.backend import TvmBackend

    TvmBackend().load(folder)


TARGET = Target("tvm", make, load, reseal)
LOAD = Target("tvm_load", make, load_with_torch, reseal)
