"""What a compiled model consists of on disk, and how a damaged folder is found out.

``manifest.json`` names the entries (functions of the model), their inputs and outputs, fresh
states, every file with its sha256, the target and the versions. It is checked before any file is
loaded, here as by the script that runs a folder without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from seqmix.backend import Program
from seqmix.errors import BackendError
from seqmix.model import state_specs
from seqmix.storage import write_tensors
from seqmix.weights import to_torch
from seqmix.whole_file import write_whole
from seqmix_ir.graph import Graph, Module
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.compiled_folder import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    FolderError,
    check_arrays,
    check_folder,
    seal_of,
)

__all__ = [
    "CONFIG",
    "MANIFEST",
    "WEIGHTS",
    "check_entries",
    "describe",
    "read_folder",
    "read_stored",
    "seal",
    "write_stored",
]

CONFIG = "config.json"
_AGAIN = "compile the model again"


def write_stored(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what the library is given, as it lies in memory."""
    write_tensors(folder / WEIGHTS, {name: to_torch(array) for name, array in arrays.items()})


def read_stored(folder: Path) -> dict[str, Any]:
    """What the library is given, by name, as tensors of TVM; BackendError where it is damaged."""
    path = folder / WEIGHTS
    try:
        check_arrays(path)
        with safe_open(path, framework="pt") as file:
            return {name: tvm.tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (FolderError, SafetensorError, OSError) as error:
        raise BackendError(f"{path}: cannot be read: {error}; {_AGAIN}") from error


def describe(
    program: Program, graphs: Mapping[str, tuple[Graph, str, list[str]]], target: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest of a program, without its files; per graph: library, names of what it reads."""
    config = program.config
    return {
        "format": FORMAT,
        "seqmix": _own_version(),
        "tvm": tvm.version(),
        "target": dict(target),
        "model": {
            "name": config.name,
            "dtype": config.dtype,
            "vocab_size": config.vocab_size,
            "context_length": config.context_length,
            "eos": sorted(config.eos),
        },
        "initial": _initial(program),
        "entries": {
            name: {
                "library": library,
                "stored": stored,
                "inputs": {n: _type(v) for n, v in graph.inputs.items()},
                "outputs": {n: _type(v) for n, v in graph.results.items()},
            }
            for name, (graph, library, stored) in graphs.items()
        },
    }


def seal(folder: Path, manifest: Mapping[str, Any], files: Iterable[str]) -> dict[str, Any]:
    """Write the manifest of a folder with the sha256 of files, which are there; what it says."""
    digests = {name: _digest(folder / name) for name in sorted(set(files))}
    full = {**manifest, "files": digests}
    full["seal"] = seal_of(full)
    write_whole(folder / MANIFEST, json.dumps(full, indent=2) + "\n")
    return full


def read_folder(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are what it says; BackendError tells what is not."""
    try:
        manifest = check_folder(folder)
    except FolderError as error:
        raise BackendError(f"{error}; {_AGAIN}") from error
    if manifest["tvm"].split(".")[:2] != tvm.version().split(".")[:2]:
        raise BackendError(
            f"{folder}: made by TVM {manifest['tvm']}, here is {tvm.version()}; "
            "compile the model again"
        )
    return manifest


def check_entries(folder: Path, manifest: Mapping[str, Any], module: Module) -> None:
    """BackendError unless the manifest has an entry for each graph, with the graph's names."""
    entries = manifest["entries"]
    expected = {g.name: (list(g.inputs), list(g.outputs)) for g in module.graphs}
    found = {n: (list(entry["inputs"]), list(entry["outputs"])) for n, entry in entries.items()}
    if found != expected:
        raise BackendError(
            f"{folder / MANIFEST}: its entries are not the graphs of the module beside it; {_AGAIN}"
        )


def _initial(program: Program) -> dict[str, Any]:
    """Axes and value of each fresh state, where the program is a model that has some."""
    known = {name for graph in program.module.graphs for name in graph.inputs}
    if not {"input_ids", "positions"} <= known:
        return {}
    states = {
        f"state.{layer}.{key}": {"axes": list(spec.axes), "fill": spec.fill}
        for layer, specs in enumerate(state_specs(program.config))
        for key, spec in specs.items()
    }
    return {name: state for name, state in states.items() if name in known}


def _type(value: Any) -> dict[str, Any]:
    return {"dtype": value.type.dtype, "shape": [str(size) for size in value.type.shape]}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_version() -> str:
    try:
        return version("seqmix")
    except PackageNotFoundError:
        return "unknown"
