"""The compiled model of a folder, checked and run without torch; a copy of this lies in the folder.

Needs Python 3.10, numpy, and apache-tvm of the version that manifest.json names. Of apache-tvm only
libtvm_runtime is loaded, for the library is an executable of Relax's virtual machine; where the
folder has a copy of that file, the small package apache-tvm-ffi is enough.

Nothing is loaded before the folder was checked: every file has the sha256 that the manifest says,
and processor and versions fit. V vocabulary.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import numpy as np

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

FORMAT = 2
MANIFEST = "manifest.json"
WEIGHTS = "stored.safetensors"
RUNTIME = "libtvm_runtime.so"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG)

CPU_FEATURES: Mapping[str, str] = {
    "avx": "avx", "avx2": "avx2", "avx512bw": "avx512bw", "avx512cd": "avx512cd",
    "avx512dq": "avx512dq", "avx512f": "avx512f", "avx512vl": "avx512vl", "bmi": "bmi1",
    "bmi2": "bmi2", "f16c": "f16c", "fma": "fma", "lzcnt": "abm", "movbe": "movbe",
    "popcnt": "popcnt", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "ssse3": "ssse3",
}  # fmt: skip
"""What code of x86-64 may need, as LLVM calls it, and as Linux does."""

_DTYPES: Mapping[str, tuple[str, str]] = {
    "F64": ("float64", "float64"), "F32": ("float32", "float32"), "F16": ("float16", "float16"),
    "BF16": ("uint16", "bfloat16"), "I64": ("int64", "int64"), "I32": ("int32", "int32"),
    "I8": ("int8", "int8"), "U8": ("uint8", "uint8"), "BOOL": ("bool", "bool"),
}  # fmt: skip
"""By the name in the file of weights: the type in numpy that holds it, and that in TVM."""

_STATES = {name.lower(): types for name, types in _DTYPES.items()}
"""The same by the names of the manifest."""

_CPU, _NAIVE = 1, 1
"""The device, and how it allocates: TVM's pool keeps memory by size, and states grow."""

_ALIGNMENT = 64


class FolderError(ValueError):
    """The folder, or what it needs, is not as it should be: where, expected, found."""


def check_folder(folder: Path) -> dict[str, Any]:
    """The manifest of a folder all of whose files are what it says; FolderError otherwise."""
    path = folder / MANIFEST
    manifest = _read_manifest(path)
    try:
        _check_content(path, manifest)
        _check_machine(folder, manifest["target"])
        files = dict(manifest["files"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"{path}: does not describe a compiled model ({error!r})") from error
    for name, digest in files.items():
        _check_file(folder, name, digest)
    return manifest


def seal_of(manifest: Mapping[str, Any]) -> str:
    """The sha256 of a manifest's own content, but for this entry."""
    content = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_arrays(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any], str]]:
    """Name, array and TVM's name of the type of every tensor of a safetensors file, in order.

    Each is a copy of its own, aligned as kernels want it; bfloat16 comes as its bits.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            held, dtype = _DTYPES[entry["dtype"]]
            begin, end = entry["data_offsets"]
            array = _aligned(entry["shape"], held)
            if end > begin:
                found = np.frombuffer(content, np.uint8, end - begin, start + begin)
                array.reshape(-1).view(np.uint8)[:] = found
                del found
            yield name, array, dtype


def _aligned(shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: no manifest of a compiled model ({error})") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FolderError(f"{path}: no manifest of a compiled model")
    if manifest["format"] != FORMAT:
        raise FolderError(f"{path}: format {manifest['format']} is not {FORMAT}")
    if manifest.get("seal") != seal_of(manifest):
        raise FolderError(f"{path}: does not have the sha256 that it names itself; it is damaged")
    return manifest


def _check_content(path: Path, manifest: Mapping[str, Any]) -> None:
    """FolderError for a manifest without a part of it, or with a library that it does not seal."""
    needed = {"tvm", "target", "model", "entries", "initial", "files"} - set(manifest)
    if needed:
        raise FolderError(f"{path}: lacks {', '.join(sorted(needed))}")
    libraries = {entry["library"] for entry in manifest["entries"].values()}
    if unsealed := {WEIGHTS, *libraries} - set(manifest["files"].keys()):
        raise FolderError(f"{path}: names {', '.join(sorted(unsealed))}, but no sha256 of it")


def _check_file(folder: Path, name: str, digest: str) -> None:
    """FolderError for a name that leaves the folder, a missing file, and a changed one."""
    if name in ("", ".", "..") or PurePath(name).name != name or "\\" in name:
        raise FolderError(f"{folder / MANIFEST}: names '{name}', which is no file of the folder")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise FolderError(f"{path}: expected sha256 {digest}, found no file")
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    if total.hexdigest() != digest:
        raise FolderError(
            f"{path}: expected sha256 {digest}, found {total.hexdigest()}; the folder is damaged "
            "or was put together by hand"
        )


def _check_machine(folder: Path, target: Mapping[str, Any]) -> None:
    """FolderError where the processor lacks what the library was compiled for."""
    here = (platform.system(), platform.machine())
    if here != (target["system"], target["machine"]):
        raise FolderError(
            f"{folder}: made for {target['system']} on {target['machine']}, here is {here[0]} "
            f"on {here[1]}; compile the model for this machine"
        )
    flags = _processor_flags()
    lacking = [f for f in target["features"] if CPU_FEATURES.get(f, f) not in flags]
    if flags and lacking:
        raise FolderError(
            f"{folder}: made for the processor '{target['mcpu']}', this one lacks "
            f"{', '.join(lacking)}; compile the model with another mcpu"
        )


def _processor_flags() -> set[str]:
    """What Linux says of an x86 processor; empty where there is nothing to read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()[2:]) for line in lines if line.startswith("flags")), set())


class CompiledModel:
    """The library of a checked folder, with its weights in memory."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Load the runtime, the library and the weights."""
        self._ffi = _load_runtime(folder, manifest)
        self._view = self._ffi.get_global_func("runtime.TVMTensorCreateView")
        entry = manifest["entries"]["forward"]
        stored = {n: self._tensor(a, t) for n, a, t in read_arrays(folder / WEIGHTS)}
        self._weights = self._ffi.Array([stored[name] for name in entry["stored"]])
        machine = self._ffi.load_module(str(folder / entry["library"]))["vm_load_executable"]()
        machine["vm_initialization"](_CPU, 0, _NAIVE)
        self._machine, self._run = machine, machine["main"]
        self._inputs, self._outputs = list(entry["inputs"]), list(entry["outputs"])
        self._logits = _STATES[entry["outputs"]["logits"]["dtype"]]
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
        array = _aligned([1, len(values)], "int64")
        array[0] = values
        return self._tensor(array, "int64")

    def _fresh(self, dtype: str, start: Mapping[str, Any]) -> Any:
        """A state before the first token, of one row; bfloat16 by the upper half of its bits."""
        held, name = _STATES[dtype]
        array = _aligned([{"B": 1, "P": 0}.get(a, a) for a in start["axes"]], held)
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
