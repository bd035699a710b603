"""What a compiled model consists of on disk, and how a damaged folder is found out.

``manifest.json`` names the entries (functions of the model), their inputs and outputs, the files
with their sha256, the target and the versions. It is checked before any file is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from seqmix.errors import BackendError
from seqmix.weights import to_torch
from seqmix_ir.graph import Graph
from seqmix_tvm import tvm_api as tvm

__all__ = [
    "CONFIG",
    "FILES",
    "MANIFEST",
    "WEIGHTS",
    "describe",
    "read_folder",
    "read_stored",
    "write_stored",
]

CONFIG = "config.json"
MANIFEST = "manifest.json"
WEIGHTS = "stored.safetensors"
_FORMAT = 1


def FILES(manifest: Mapping[str, Any]) -> list[str]:  # noqa: N802
    """The files that the manifest seals, and itself."""
    return [*manifest["files"], MANIFEST]


def write_stored(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what the library is given, as it lies in memory."""
    save_file({name: to_torch(array) for name, array in arrays.items()}, folder / WEIGHTS)


def read_stored(folder: Path) -> dict[str, Any]:
    """What the library is given, by name, as tensors of TVM."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return {name: tvm.tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118


def describe(
    folder: Path, graphs: Mapping[str, tuple[Graph, str, list[str]]], target: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest of a folder whose other files are there; per graph: library, stored."""
    files = sorted(p.name for p in folder.iterdir() if p.name != MANIFEST)
    manifest = {
        "format": _FORMAT,
        "tvm": tvm.version(),
        "target": dict(target),
        "entries": {
            name: {
                "library": library,
                "stored": stored,
                "inputs": {n: _type(v) for n, v in graph.inputs.items()},
                "outputs": {n: _type(v) for n, v in graph.results.items()},
            }
            for name, (graph, library, stored) in graphs.items()
        },
        "files": {name: _digest(folder / name) for name in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def read_folder(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are what it says; BackendError tells what is not."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT:
            raise BackendError(
                f"{path}: format {manifest['format']} is not {_FORMAT}; compile the model again"
            )
        files, entries = dict(manifest["files"]), dict(manifest["entries"])
        known = {WEIGHTS, *(entry["library"] for entry in entries.values())}
        made_by, _ = str(manifest["tvm"]), dict(manifest["target"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(
            f"{path}: no manifest of a compiled model ({error!r}); compile the model again"
        ) from error
    if made_by.split(".")[:2] != tvm.version().split(".")[:2]:
        raise BackendError(
            f"{folder}: made by TVM {made_by}, here is {tvm.version()}; compile the model again"
        )
    for name in sorted(known | set(files)):
        found = _digest(folder / name) if (folder / name).is_file() else "no file"
        if Path(name).name != name or found != files.get(name):
            raise BackendError(
                f"{folder / name}: expected sha256 {files.get(name)}, found {found}; the folder is "
                "damaged or was put together by hand; compile the model again"
            )
    return manifest


def _type(value: Any) -> dict[str, Any]:
    return {"dtype": value.type.dtype, "shape": [str(size) for size in value.type.shape]}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
