"""Safetensors files, one or many: the header is checked before a byte of a tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from seqmix.errors import CheckpointError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError
from seqmix.safetensors_header import TensorSpan, read_spans
from seqmix_checkpoints.settings import read_json
from seqmix_checkpoints.tensors import FileTensor, read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INDEX_FILE", "WEIGHTS_FILE", "read_directory", "read_header"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SUFFIX = ".safetensors"
SHOWN = 300
"""Characters of a file's name: no file system has longer ones."""
DTYPES: dict[str, Any] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
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
    spans = read_spans(path, buffers=buffers)
    return {
        name: FileTensor(path, name, span.shape, _loader(path, name, span))
        for name, span in spans.items()
    }


def _loader(path: Path, name: str, span: TensorSpan) -> Callable[[], NDArray[Any]]:
    def load() -> NDArray[Any]:
        data = read_bytes(path, name, span.start, span.stop - span.start)
        array: NDArray[Any] = data.view(DTYPES[span.dtype])
        return array.reshape(span.shape)

    return load


def _read_shards(folder: Path, buffers: tuple[str, ...]) -> dict[str, FileTensor]:
    index = folder / INDEX_FILE
    try:
        files = {name: str(f)[:SHOWN] for name, f in read_json(index)["weight_map"].items()}
    except (CheckpointError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{index}: should map tensors to files under 'weight_map': {error}; fetch it again"
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
    try:
        path = file_inside(folder, file)
        if not file.endswith(SUFFIX):
            raise UnreadableError(f"has no suffix {SUFFIX}")
    except UnreadableError as error:
        raise CheckpointError(
            f"{folder}: weights should be .safetensors files of this folder, found '{file}', which "
            "leads out of it or is of another kind; put a copy of the file into the folder"
        ) from error
    if not path.is_file():
        raise CheckpointError(f"{folder}: expected the shard {file}, found no such file; fetch it")
    return path
