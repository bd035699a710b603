"""The folder of a compiled model, checked before any of it is loaded; a copy of this lies in it.

Needs Python 3.10 and numpy. Every file has the sha256 that the manifest says, and processor and
versions fit. The checksums find damage: they do not say who made the folder, and its library is
native code, so a folder of a stranger is a program of a stranger. Even so no claim of a file is
believed before it was held against what is there.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

__all__ = [
    "CPU_FEATURES",
    "DTYPES",
    "FORMAT",
    "MANIFEST",
    "RUNTIME",
    "STATES",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "TOKENIZER_FILES",
    "WEIGHTS",
    "FolderError",
    "aligned",
    "check_arrays",
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

LONGEST = 16 << 20
"""Bytes of a manifest, and of the header of the weights: both have some hundred per weight."""
LARGEST_STATE = 1 << 31
"""Elements of a fresh state: those of models have some millions, and nothing on disk vouches."""
DIGITS = 20

CPU_FEATURES: Mapping[str, str] = {
    "avx": "avx", "avx2": "avx2", "avx512bw": "avx512bw", "avx512cd": "avx512cd",
    "avx512dq": "avx512dq", "avx512f": "avx512f", "avx512vl": "avx512vl", "bmi": "bmi1",
    "bmi2": "bmi2", "f16c": "f16c", "fma": "fma", "lzcnt": "abm", "movbe": "movbe",
    "popcnt": "popcnt", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "ssse3": "ssse3",
}  # fmt: skip
"""What code of x86-64 may need, as LLVM calls it, and as Linux does."""

DTYPES: Mapping[str, tuple[str, str]] = {
    "F64": ("float64", "float64"), "F32": ("float32", "float32"), "F16": ("float16", "float16"),
    "BF16": ("uint16", "bfloat16"), "I64": ("int64", "int64"), "I32": ("int32", "int32"),
    "I8": ("int8", "int8"), "U8": ("uint8", "uint8"), "BOOL": ("bool", "bool"),
}  # fmt: skip
"""By the name in the file of weights: the type in numpy that holds it, and that in TVM."""

STATES = {name.lower(): types for name, types in DTYPES.items()}
"""The same by the names of the manifest."""

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

    Each is a copy of its own, aligned as kernels want it; bfloat16 comes as its bits. FolderError
    before the first one where the file is not whole.
    """
    header, start = check_arrays(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name, entry in header.items():
            held, dtype = DTYPES[entry["dtype"]]
            begin, end = entry["data_offsets"]
            array = aligned(entry["shape"], held)
            if end > begin:
                found = np.frombuffer(content, np.uint8, end - begin, start + begin)
                array.reshape(-1).view(np.uint8)[:] = found
                del found
            yield name, array, dtype


def check_arrays(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begins; FolderError where it lies.

    Tensors lie one after the other and fill the file, so that none is larger than what is there.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST, size - 8):
                raise FolderError(f"{path}: claims a header of {length} bytes, it has {size}")
            header = _parsed(file.read(length))
        header.pop("__metadata__", None)
        ends = sorted(_span(name, entry) for name, entry in header.items())
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"{path}: no file of weights ({error!r})"[:2000]) from error
    place = 0
    for begin, end in ends:
        if begin != place:
            raise FolderError(f"{path}: a tensor begins at {begin}, expected {place}")
        place = end
    if 8 + length + place != size:
        raise FolderError(f"{path}: should have {8 + length + place} bytes, found {size}")
    return header, 8 + length


def aligned(shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    """Memory for an array that begins where kernels want it to."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def _span(name: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    """Where a tensor lies; FolderError where that is not as much as its shape says."""
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not all(_is_size(n) for n in (*shape, begin, end)):
        raise FolderError(f"'{name[:200]}' has sizes or offsets that are no whole numbers")
    size = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]][0]).itemsize
    if len(shape) > 64 or end - begin != size:
        raise FolderError(f"'{name[:200]}' should have {size} bytes, found {end - begin}")
    return begin, end


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; ValueError or RecursionError for anything else."""

    def whole(digits: str) -> int:
        if len(digits) > DIGITS:
            raise ValueError(f"a number has {len(digits)} digits")
        return int(digits)

    found = json.loads(text, parse_int=whole)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("no regular file")
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise ValueError(f"longer than {LONGEST} bytes")
        manifest = _parsed(content)
        sealed = seal_of(manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{path}: no manifest of a compiled model ({error})") from error
    if "format" not in manifest:
        raise FolderError(f"{path}: no manifest of a compiled model")
    if manifest["format"] != FORMAT:
        raise FolderError(f"{path}: format {manifest['format']!r:.200} is not {FORMAT}")
    if manifest.get("seal") != sealed:
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
    if not isinstance(manifest["tvm"], str):
        raise FolderError(f"{path}: the version of TVM should be a text")
    for name, entry in manifest["entries"].items():
        _check_entry(path, name, entry)
    for name, start in manifest["initial"].items():
        _check_state(path, name, start)


def _check_entry(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    """FolderError for inputs, outputs or names of weights that are none."""
    stored = entry["stored"]
    if not isinstance(stored, list) or not all(isinstance(key, str) for key in stored):
        raise FolderError(f"{path}: 'stored' of '{name[:200]}' should be a list of names")
    for kind in ("inputs", "outputs"):
        for key, type in entry[kind].items():
            if type["dtype"] not in STATES or not isinstance(type["shape"], list):
                raise FolderError(f"{path}: '{key[:200]}' of '{name[:200]}' has no type")


def _check_state(path: Path, name: str, start: Mapping[str, Any]) -> None:
    """FolderError for a fresh state that is no array, or larger than any."""
    axes, fill = start["axes"], start["fill"]
    sizes = [1 if axis in ("B", "P") else axis for axis in axes]
    if not all(map(_is_size, sizes)) or len(sizes) > 64 or math.prod(sizes) > LARGEST_STATE:
        raise FolderError(f"{path}: the fresh state '{name[:200]}' has the axes {axes!r:.200}")
    if not isinstance(fill, int | float):
        raise FolderError(f"{path}: the fresh state '{name[:200]}' is filled with {fill!r:.200}")


def _check_file(folder: Path, name: str, digest: str) -> None:
    """FolderError for a name that leaves the folder, a missing file, and a changed one."""
    if name in ("", ".", "..") or PurePath(name).name != name or "\\" in name or "\0" in name:
        raise FolderError(
            f"{folder / MANIFEST}: names '{name[:200]!s}', which is no file of the folder"
        )
    path = folder / name
    total = hashlib.sha256()
    try:
        if path.is_symlink() or not path.is_file():
            raise FolderError(f"{path}: expected sha256 {digest!s:.100}, found no file")
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                total.update(piece)
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error}") from error
    if total.hexdigest() != digest:
        raise FolderError(
            f"{path}: expected sha256 {digest!s:.100}, found {total.hexdigest()}; the folder is "
            "damaged or was put together by hand"
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
