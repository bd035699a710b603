"""Files that ``torch.save`` wrote: the tensors in them, without unpickling anything.

Such a file is an uncompressed zip archive: the memory of each tensor is an entry, and ``data.pkl``
is a pickle that says which names, shapes and strides they have.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqmix.errors import CheckpointError
from seqmix_xlstm.state_dict_pickle import STORAGES, DescribedTensor, run_pickle

__all__ = ["TensorPlace", "read_places"]

PICKLE = "/data.pkl"
LIMIT = 8 << 20
"""Bytes of the pickle, and of the list of entries: a tensor takes some 250 in both together, and
state dicts have some ten thousand of them."""
DEPTH = 100
RANK = 8
SHOWN = 300
LOCAL_HEADER, LOCAL_MAGIC = 30, b"PK\x03\x04"


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a file: ``start`` counts bytes, ``strides`` elements; ``count`` bytes follow."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    count: int


def read_places(path: Path) -> Any:
    """What a file holds, with a :class:`TensorPlace` for each tensor.

    CheckpointError when it is no uncompressed archive, when its pickle does more than a state dict
    needs, or when a tensor does not lie within its entry.
    """
    try:
        with _Bounded(io.FileIO(path)) as raw, zipfile.ZipFile(raw) as archive:
            entries = _Entries(raw, archive)
            return _placed(run_pickle(entries.pickle), entries, DEPTH)
    except Exception as error:  # What is damaged raises whatever it likes.
        raise CheckpointError(
            f"{path}: cannot be read as tensors alone: {type(error).__name__}: "
            f"{str(error)[:SHOWN]}; save the state dict itself: "
            "torch.save(model.state_dict(), path)"
        ) from error


class _Bounded(io.BufferedReader):
    """A file of which nobody reads much at once, such as an endless list of entries."""

    def read(self, size: int | None = -1, /) -> bytes:
        """As any file, up to the limit; ValueError beyond."""
        wanted = LIMIT if size is None or size < 0 else size
        if wanted > LIMIT:
            raise ValueError(f"the archive has a part of {wanted} bytes, at most {LIMIT} are read")
        return super().read(wanted)


class _Entries:
    """The entries of an archive, as they lie in the file."""

    def __init__(self, raw: _Bounded, archive: zipfile.ZipFile) -> None:
        self._raw = raw
        self._size = raw.seek(0, io.SEEK_END)
        self._infos = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in self._infos if name.endswith(PICKLE) and name.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError(f"expected one entry NAME{PICKLE}, found {len(pickles)}")
        self._top = pickles[0].removesuffix(PICKLE)
        start, count = self._span(pickles[0])
        raw.seek(start)
        self.pickle = raw.read(count)
        if f"{self._top}/byteorder" in self._infos:
            start, count = self._span(f"{self._top}/byteorder")
            raw.seek(start)
            if (order := raw.read(min(count, 20))) != b"little":
                raise ValueError(f"expected numbers of byteorder little, found {order!r}")

    def storage(self, key: str) -> tuple[int, int]:
        """Where the memory of tensors lies, and its bytes."""
        return self._span(f"{self._top}/data/{key}")

    def _span(self, name: str) -> tuple[int, int]:
        """Start and length of an entry; ValueError when it is packed or not in the file."""
        info = self._infos[name]
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"the entry '{name[:SHOWN]}' is compressed, expected it as it is")
        self._raw.seek(info.header_offset)
        header = self._raw.read(LOCAL_HEADER)
        if len(header) != LOCAL_HEADER or not header.startswith(LOCAL_MAGIC):
            raise ValueError(f"the entry '{name[:SHOWN]}' is not where the archive says")
        start = info.header_offset + LOCAL_HEADER + sum(struct.unpack("<HH", header[-4:]))
        if start + info.file_size > self._size:
            raise ValueError(f"the entry '{name[:SHOWN]}' ends beyond the file")
        return start, info.file_size


def _placed(held: Any, entries: _Entries, depth: int) -> Any:
    """What a pickle describes, with tensors as places; ValueError for what is beyond an entry."""
    if depth < 0:
        raise ValueError(f"it nests deeper than {DEPTH} levels")
    if isinstance(held, dict):
        return {key: _placed(value, entries, depth - 1) for key, value in held.items()}
    return _place(held, entries) if isinstance(held, DescribedTensor) else held


def _place(tensor: DescribedTensor, entries: _Entries) -> TensorPlace:
    """Where a tensor lies: within its entry, its elements apart from each other."""
    dtype, width = STORAGES[tensor.storage.kind]
    start, count = entries.storage(tensor.storage.key)
    shape, strides = tensor.shape, tensor.strides
    if len(shape) != len(strides) or len(shape) > RANK or tensor.storage.elements * width != count:
        raise ValueError(f"a tensor of shape {shape} does not fit its {count} bytes")
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    end = tensor.offset + last + 1 if all(shape) else tensor.offset
    if end * width > count or math.prod(shape) * width > count:
        raise ValueError(
            f"a tensor of shape {shape} and strides {strides} leaves its {count} bytes"
        )
    skipped = tensor.offset * width
    return TensorPlace(dtype, shape, strides, start + skipped, end * width - skipped)
