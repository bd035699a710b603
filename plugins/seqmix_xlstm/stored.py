"""Tensors of foreign checkpoints, wherever they lie: shapes at once, contents when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from seqmix.dtypes import dtype_name, torch_dtype
from seqmix.errors import CheckpointError, ConfigError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError, read_json
from seqmix.safetensors_header import read_spans
from seqmix_xlstm.torch_file import TensorPlace, read_places

__all__ = ["MEMORY", "Shape", "Stored", "TensorSource", "read_stored", "weights_in"]

Shape: TypeAlias = tuple[int, ...]
TensorSource: TypeAlias = "Path | str | Mapping[str, Tensor]"

MEMORY = "state dict"
"""What errors call weights that are no file."""
INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"
NUMBERED_FILE = "model_{}.safetensors"
PICKLES = (".pt", ".pth", ".bin")
WRAPPER = "state_dict"
SHOWN = 300
DTYPES = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True)
class Stored:
    """One tensor as it is stored; ``path`` is None for one that is in memory already."""

    name: str
    shape: Shape
    dtype: str
    load: Callable[[], Tensor]
    path: Path | None = None

    @property
    def identity(self) -> str:
        """Changes when the file does; empty when there is no file."""
        if self.path is None:
            return ""
        stat = self.path.stat()
        return f"{self.path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{self.name}"


def read_stored(source: TensorSource) -> tuple[str, dict[str, Stored]]:
    """What errors call the source, and its tensors by name.

    A source is a ``.safetensors`` file, a directory of one or many of them, a file that
    ``torch.save`` wrote (``.pt``, ``.pth``, ``.bin``; only tensors are unpickled, never code), or
    a state dict, which must not change before it is read: its tensors are copied then.
    CheckpointError for a file that is missing, damaged or of another kind.
    """
    if isinstance(source, Mapping):
        return MEMORY, _held(MEMORY, source)
    path = Path(source)
    if path.is_dir():
        return str(path), _read_directory(path)
    if path.suffix == ".safetensors":
        return str(path), _read_safetensors(path)
    if path.suffix in PICKLES:
        return str(path), _read_pickle(path)
    raise CheckpointError(
        f"{path}: expected weights in a directory or in a file of .safetensors, "
        f"{', '.join(PICKLES)}, found {path.suffix or 'no suffix'!r}"
    )


def weights_in(folder: Path) -> Path:
    """What :func:`read_stored` reads of a directory: itself, or the only file of weights in it."""
    names = (WEIGHTS_FILE, INDEX_FILE, NUMBERED_FILE.format(0))
    if any((folder / name).is_file() for name in names):
        return folder
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", *PICKLES))
    if len(files) != 1:
        found = ", ".join(p.name for p in files[:4]) or "none"
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, {INDEX_FILE} or one file of "
            f".safetensors, {', '.join(PICKLES)}, found {found}"
        )
    return _inside(folder, files[0].name)


def _read_directory(folder: Path) -> dict[str, Stored]:
    """One file, the shards of an index, or ``model_0.safetensors`` and so on."""
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder)
    if (folder / WEIGHTS_FILE).is_file():
        return _read_safetensors(_inside(folder, WEIGHTS_FILE))
    tensors: dict[str, Stored] = {}
    number = 0
    while (folder / NUMBERED_FILE.format(number)).is_file():
        file = NUMBERED_FILE.format(number)
        shard = _read_safetensors(_inside(folder, file))
        if twice := sorted(tensors.keys() & shard.keys()):
            raise CheckpointError(
                f"{folder / file}: tensor '{twice[0]}' should be in one file, found it in "
                f"{tensors[twice[0]].path} too; fetch the files again"
            )
        tensors |= shard
        number += 1
    if not number:
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, {INDEX_FILE} or {NUMBERED_FILE.format(0)}, "
            "found none of them"
        )
    return tensors


def _read_shards(folder: Path) -> dict[str, Stored]:
    """The tensors that an index lists, which must be exactly those of its shards."""
    index = folder / INDEX_FILE
    try:
        places = read_json(file_inside(folder, INDEX_FILE))["weight_map"]
        files = {name: str(file)[:SHOWN] for name, file in places.items()}
    except (UnreadableError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index}: should map tensors to files under 'weight_map': {error!r}; fetch it again"
        ) from error
    shards = {
        file: _read_safetensors(_inside(folder, file)) for file in dict.fromkeys(files.values())
    }
    listed = set(files.items())
    held = {(name, file) for file, shard in shards.items() for name in shard}
    for name, file in sorted(listed ^ held):
        promised = (name, file) in listed
        raise CheckpointError(
            f"{index}: tensor '{name}' {'should be' if promised else 'is not listed, found it'} "
            f"in {file}{', which has no such tensor' if promised else ''}; index and shards are "
            "of different versions, fetch them again"
        )
    return {name: shards[file][name] for name, file in files.items()}


def _inside(folder: Path, file: str) -> Path:
    """A file of the folder. A link may lead to the blobs of the download cache it lies in."""
    try:
        path = file_inside(folder, file)
        if path.suffix not in (".safetensors", *PICKLES) or not path.is_file():
            raise UnreadableError("is missing or of another kind")
    except UnreadableError as error:
        raise CheckpointError(
            f"{folder}: weights should be .safetensors files of this folder, found '{file}', "
            f"which {error}; put the file there"
        ) from error
    return path


def _read_safetensors(path: Path) -> dict[str, Stored]:
    return {
        name: Stored(name, span.shape, DTYPES[span.dtype], _loader(path, name), path)
        for name, span in read_spans(path, DTYPES).items()
    }


def _loader(path: Path, name: str) -> Callable[[], Tensor]:
    def load() -> Tensor:
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path}: tensor '{name}' cannot be read: {error}; fetch the file again"
            ) from error
        return tensor

    return load


def _read_pickle(path: Path) -> dict[str, Stored]:
    """The state dict in a pickle, or under 'state_dict' in it, as trainers write it."""
    data = read_places(path)
    if isinstance(data, dict) and isinstance(data.get(WRAPPER), dict):
        data = data[WRAPPER]
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{path}: should hold a dictionary of tensors, found {type(data).__name__}"
        )
    found = {}
    for name, place in data.items():
        if not isinstance(place, TensorPlace):
            raise CheckpointError(
                f"{path}: '{str(name)[:SHOWN]}' should be a tensor, found {type(place).__name__}"
            )
        if place.dtype not in DTYPES.values():
            raise CheckpointError(_wrong_dtype(str(path), str(name), place.dtype))
        load = partial(_load_place, path, str(name), place)
        found[str(name)] = Stored(str(name), place.shape, place.dtype, load, path)
    return found


def _load_place(path: Path, name: str, place: TensorPlace) -> Tensor:
    """The bytes of a tensor, which may lie in another order than its own."""
    try:
        data = np.fromfile(path, dtype=np.uint8, count=place.count, offset=place.start)
    except OSError as error:
        raise CheckpointError(f"{path}: tensor '{name}' cannot be read: {error}") from error
    if data.size != place.count:
        raise CheckpointError(
            f"{path}: tensor '{name}' should have {place.count} bytes, found {data.size}; fetch "
            "the file again"
        )
    dtype = torch_dtype(place.dtype)
    if not data.size:
        return torch.zeros(place.shape, dtype=dtype)
    flat = torch.from_numpy(data).view(dtype)
    return flat.as_strided(place.shape, place.strides).contiguous()


def _held(where: str, tensors: Mapping[Any, Any]) -> dict[str, Stored]:
    found = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{where}: '{name}' should be a tensor, found {type(tensor).__name__}"
            )
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise CheckpointError(
                f"{where}: tensor '{name}' should be dense and have memory, found "
                f"{tensor.layout} on {tensor.device}"
            )
        try:
            dtype = dtype_name(tensor.dtype)
        except ConfigError:
            dtype = None
        if dtype not in DTYPES.values():
            raise CheckpointError(_wrong_dtype(where, str(name), str(tensor.dtype)))
        found[str(name)] = Stored(str(name), tuple(tensor.shape), str(dtype), tensor.detach().clone)
    return found


def _wrong_dtype(where: str, name: str, found: str) -> str:
    return (
        f"{where}: tensor '{name}' should have a dtype of {', '.join(DTYPES)}, found {found}; "
        "convert the checkpoint to one of them"
    )
