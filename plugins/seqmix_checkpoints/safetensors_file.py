"""Safetensors files, one or many: the header is checked before a byte of a tensor is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from seqmix.errors import CheckpointError
from seqmix_checkpoints.tensors import FileTensor, read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INDEX_FILE", "WEIGHTS_FILE", "read_directory", "read_header"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000
DTYPES: dict[str, Any] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
BUFFER_DTYPES: dict[str, Any] = {
    **DTYPES,
    "BOOL": np.dtype(np.bool_),
    **{
        f"{kind}{bits}": np.dtype(f"<{kind.lower()}{bits // 8}")
        for kind in "IU"
        for bits in (8, 16, 32, 64)
    },
}


def read_directory(folder: Path, buffers: tuple[str, ...] = ()) -> dict[str, FileTensor]:
    """Every tensor of a directory, of one file or of the shards that an index lists.

    Names that end with one of ``buffers`` are no weights and may be of any type.
    """
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder, buffers)
    if (folder / WEIGHTS_FILE).is_file():
        return read_header(_inside(folder, WEIGHTS_FILE), buffers)
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, found {', '.join(pickles[:3])}; these are "
            "pickles, which can run code when they are read, so they are refused: convert "
            "them where you trust them with transformers' save_pretrained"
        )
    raise CheckpointError(f"{folder}: expected {WEIGHTS_FILE} or {INDEX_FILE}, found neither")


def read_header(path: Path, buffers: tuple[str, ...] = ()) -> dict[str, FileTensor]:
    """The tensors of one file; CheckpointError when the header does not fit the file.

    For ``buffers`` see :func:`read_directory`.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise CheckpointError(
                    f"{path}: header should be {length} bytes long, the file has {size} in all; "
                    "it is truncated or no safetensors file, fetch it again"
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    entries = _parse(path, text)
    entries.pop("__metadata__", None)
    tensors, spans = {}, []
    for name, entry in entries.items():
        dtypes = BUFFER_DTYPES if name.endswith(buffers) else DTYPES
        dtype, shape, start, stop = _checked(path, name, entry, size - 8 - length, dtypes)
        spans.append((start, stop, name))
        load = _loader(path, name, dtype, shape, 8 + length + start)
        tensors[name] = FileTensor(path, name, shape, load)
    _refuse_overlap(path, spans)
    return tensors


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: header is not valid JSON ({error}); the file is damaged, fetch it again"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: header should be an object, found {type(header).__name__}")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError when it has a key twice."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key '{key[:200]}' appears twice")
        seen.add(key)
    return dict(pairs)


def _checked(
    path: Path, name: str, entry: Any, available: int, dtypes: Mapping[str, Any]
) -> tuple[Any, tuple[int, ...], int, int]:
    """Dtype, shape, start and end of a tensor."""
    where = f"{path}: tensor '{name}'"
    entry = entry if isinstance(entry, dict) else {}
    shape, span = entry.get("shape"), entry.get("data_offsets")
    if not _naturals(shape) or not _naturals(span) or len(span) != 2:
        raise CheckpointError(
            f"{where} should have a shape and two data_offsets of numbers >= 0, "
            f"found {str(entry)[:200]}; the file is damaged, fetch it again"
        )
    if (dtype := dtypes.get(str(entry.get("dtype")))) is None:
        raise CheckpointError(
            f"{where} should have a dtype of {', '.join(DTYPES)}, found {entry.get('dtype')!r}; "
            "convert the checkpoint to one of them"
        )
    start, stop = span
    needed = math.prod(shape) * dtype.itemsize
    if not start <= stop <= available or stop - start != needed:
        raise CheckpointError(
            f"{where} should have {needed} bytes within {available}, found bytes {start} to "
            f"{stop}; the file is truncated or damaged, fetch it again"
        )
    return dtype, tuple(shape), start, stop


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _refuse_overlap(path: Path, spans: list[tuple[int, int, str]]) -> None:
    ordered = sorted(span for span in spans if span[0] < span[1])
    for (_, stop, first), (start, _, second) in pairwise(ordered):
        if start < stop:
            raise CheckpointError(
                f"{path}: tensors '{first}' and '{second}' should lie apart, found them "
                "overlapping; the file is damaged, fetch it again"
            )


def _loader(
    path: Path, name: str, dtype: Any, shape: tuple[int, ...], start: int
) -> Callable[[], NDArray[Any]]:
    def load() -> NDArray[Any]:
        count = math.prod(shape) * dtype.itemsize
        array: NDArray[Any] = read_bytes(path, name, start, count).view(dtype)
        return array.reshape(shape)

    return load


def _read_shards(folder: Path, buffers: tuple[str, ...]) -> dict[str, FileTensor]:
    index = folder / INDEX_FILE
    try:
        data = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_unique)
        places = data["weight_map"]
        files = {str(name): str(file) for name, file in places.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index}: should map tensors to files under 'weight_map': {error!r}; fetch it again"
        ) from error
    shards = {
        file: read_header(_inside(folder, file), buffers) for file in dict.fromkeys(files.values())
    }
    _refuse_misfits(index, files, shards)
    return {name: shards[file][name] for name, file in files.items()}


def _refuse_misfits(
    index: Path, files: Mapping[str, str], shards: Mapping[str, Mapping[str, FileTensor]]
) -> None:
    """CheckpointError when a shard lacks what the index promises, or has what it does not list."""
    remedy = "index and shards are of different versions, fetch them again"
    for name, file in files.items():
        if name not in shards[file]:
            raise CheckpointError(
                f"{index}: tensor '{name}' should be in {file}, which has no such tensor; {remedy}"
            )
    for file, held in shards.items():
        for name in held:
            if name not in files:
                raise CheckpointError(
                    f"{index}: does not list tensor '{name}', found in {file}; {remedy}"
                )
            if files[name] != file:
                raise CheckpointError(
                    f"{index}: tensor '{name}' should be in one shard, found in {files[name]} "
                    f"and in {file}; {remedy}"
                )


def _inside(folder: Path, file: str) -> Path:
    """A file of the folder. A link may lead to the blobs of the download cache it lies in."""
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    plain = file == Path(file).name and file.endswith(".safetensors")
    path = folder / file
    if not plain or not _lies_in(path, roots):
        raise CheckpointError(
            f"{folder}: weights should be .safetensors files of this folder, found '{file}', which "
            "leads out of it or is of another kind; put a copy of the file into the folder"
        )
    if not path.is_file():
        raise CheckpointError(f"{folder}: expected the shard {file}, found no such file; fetch it")
    return path


def _lies_in(path: Path, roots: list[Path]) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        return False  # a name that no file can have: too long, not text, a loop of links
    return any(path.resolve().is_relative_to(root) for root in roots)
