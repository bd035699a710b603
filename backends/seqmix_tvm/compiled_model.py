"""The compiled model of a folder, run without torch; a copy of this lies in the folder.

Needs Python 3.10, numpy, and apache-tvm of the version that manifest.json names. Of apache-tvm only
libtvm_runtime is loaded, for the library is an executable of Relax's virtual machine; where the
folder has a copy of that file, the small package apache-tvm-ffi is enough.

Nothing is loaded before the folder was checked: see compiled_folder. V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from seqmix_tvm.compiled_folder import (
    CPU_FEATURES,
    FORMAT,
    MANIFEST,
    RUNTIME,
    STATES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    WEIGHTS,
    FolderError,
    aligned,
    check_folder,
    read_arrays,
    seal_of,
)

__all__ = [
    "CPU_FEATURES",
    "FORMAT",
    "MANIFEST",
    "RUNTIME",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "TOKENIZER_FILES",
    "WEIGHTS",
    "CompiledModel",
    "FolderError",
    "check_folder",
    "read_arrays",
    "seal_of",
]

_CPU, _NAIVE = 1, 1
"""The device, and how it allocates: TVM's pool keeps memory by size, and states grow."""


class CompiledModel:
    """The library of a checked folder, with its weights in memory."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Load the runtime, the library and the weights."""
        self._ffi = _load_runtime(folder, manifest)
        self._view = self._ffi.get_global_func("runtime.TVMTensorCreateView")
        if (entry := manifest["entries"].get("forward")) is None:
            raise FolderError(f"{folder / MANIFEST}: has no entry 'forward'")
        stored = {n: self._tensor(a, t) for n, a, t in read_arrays(folder / WEIGHTS)}
        if missing := [name for name in entry["stored"] if name not in stored]:
            raise FolderError(f"{folder / WEIGHTS}: has no tensor '{missing[0]}'")
        self._weights = self._ffi.Array([stored[name] for name in entry["stored"]])
        machine = self._ffi.load_module(str(folder / entry["library"]))["vm_load_executable"]()
        machine["vm_initialization"](_CPU, 0, _NAIVE)
        self._machine, self._run = machine, machine["main"]
        self._inputs, self._outputs = list(entry["inputs"]), list(entry["outputs"])
        self._logits = STATES[entry["outputs"]["logits"]["dtype"]]
        self._states = {
            name: self._fresh(entry["inputs"][name]["dtype"], start)
            for name, start in manifest["initial"].items()
        }
        self._read = 0

    def read(self, ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """Read tokens after those before; float32 scores ``[V]`` of what follows the last."""
        given = dict(self._states)
        given["input_ids"] = self._integers(list(ids))
        given["positions"] = self._integers(range(self._read, self._read + len(ids)))
        results = self._run(*(given[name] for name in self._inputs), self._weights)
        made = dict(zip(self._outputs, results, strict=True))
        scores = self._floats(made.pop("logits"))[0, -1]
        self._states.update(made)
        self._read += len(ids)
        return np.array(scores)

    def _floats(self, tensor: Any) -> Any:
        """A tensor of TVM as float32, whatever kind of floats it has."""
        held, dtype = self._logits
        if dtype != "bfloat16":
            return np.from_dlpack(tensor).astype(np.float32, copy=False)
        bits = np.from_dlpack(self._view(tensor, self._ffi.Shape(tensor.shape), held, 0))
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def _integers(self, values: Sequence[int]) -> Any:
        array = aligned([1, len(values)], "int64")
        array[0] = values
        return self._tensor(array, "int64")

    def _fresh(self, dtype: str, start: Mapping[str, Any]) -> Any:
        """A state before the first token, of one row; bfloat16 by the upper half of its bits."""
        held, name = STATES[dtype]
        array = aligned([{"B": 1, "P": 0}.get(a, a) for a in start["axes"]], held)
        fill = start["fill"]
        array[...] = np.float32(fill).view(np.uint32) >> 16 if name == "bfloat16" else fill
        return self._tensor(array, name)

    def _tensor(self, array: np.ndarray[Any, Any], dtype: str) -> Any:
        made = self._ffi.from_dlpack(array)
        if dtype == "bfloat16":
            return self._view(made, self._ffi.Shape(array.shape), dtype, 0)
        return made


def _load_runtime(folder: Path, manifest: Mapping[str, Any]) -> Any:
    """The module tvm_ffi, with TVM's runtime loaded behind it; of the right version."""
    try:
        import tvm_ffi
    except ImportError as error:
        raise FolderError(f"{error}; pip install 'apache-tvm=={manifest['tvm']}'") from error
    own = folder / RUNTIME
    if RUNTIME in manifest["files"]:
        ctypes.CDLL(str(own), ctypes.RTLD_GLOBAL)
        return tvm_ffi
    try:
        found = version("apache-tvm")
    except PackageNotFoundError:
        found = "none"
    if found.split(".")[:2] != manifest["tvm"].split(".")[:2]:
        raise FolderError(
            f"{folder}: made with apache-tvm {manifest['tvm']}, here is {found}; "
            f"pip install 'apache-tvm=={manifest['tvm']}'"
        )
    tvm_ffi.libinfo.load_lib_ctypes("apache-tvm", "tvm_runtime", "RTLD_GLOBAL")
    return tvm_ffi
