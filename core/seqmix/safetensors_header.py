"""Headers of safetensors files, checked against the file before a byte of a tensor is read.

The format: 8 bytes of length, a JSON header with dtype, shape and span of each tensor, the data.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqmix.errors import CheckpointError
from seqmix.reading import UnreadableError, parse_json

__all__ = ["DTYPES", "TensorSpan", "read_spans"]

DTYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "I8": 1, "U8": 1,
    "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8,
}  # fmt: skip
"""Bytes of an element; types of less than a byte, of 8-bit floats and complex ones are not read."""
FLOATS = ("F64", "F32", "F16", "BF16")
HEADER_LIMIT = 8 << 20
"""Bytes: an entry takes some 100, and the largest files have some ten thousand tensors."""
RANK = 8
"""Dimensions of a tensor; weights have up to four, and arrays end at 64."""
SHOWN = 200


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """What the header says of a tensor; ``start`` and ``stop`` count from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_spans(
    path: Path, dtypes: Collection[str] = FLOATS, buffers: tuple[str, ...] = ()
) -> dict[str, TensorSpan]:
    """The tensors of a file by name; CheckpointError when the header does not fit the file.

    Every tensor has one of ``dtypes``; one whose name ends with one of ``buffers`` may have any of
    :data:`DTYPES`. Shapes, spans and sizes agree with each other and with the file, and no two
    tensors share bytes.
    """
    text, size = _header(path)
    begin = 8 + len(text)
    try:
        entries = parse_json(text)
    except UnreadableError as error:
        raise CheckpointError(
            f"{path}: header {error}; the file is damaged, fetch it again"
        ) from error
    if not isinstance(entries, dict):
        raise CheckpointError(
            f"{path}: header should be an object, found {type(entries).__name__}; the file is "
            "damaged, fetch it again"
        )
    entries.pop("__metadata__", None)
    spans = {}
    for name, entry in entries.items():
        allowed = DTYPES if name.endswith(buffers) else dtypes
        spans[name] = _checked(f"{path}: tensor '{name[:SHOWN]}'", entry, begin, size, allowed)
    _refuse_overlap(path, spans)
    return spans


def _header(path: Path) -> tuple[bytes, int]:
    """The text of the header, and the size of the file."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: should be a safetensors file, found no regular file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise CheckpointError(
                    f"{path}: header should be {length} bytes long, the file has {size} in all "
                    f"and a header at most {HEADER_LIMIT}; it is truncated or no safetensors "
                    "file, fetch it again"
                )
            return file.read(length), size
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _checked(where: str, entry: Any, begin: int, size: int, dtypes: Collection[str]) -> TensorSpan:
    """One entry; spans in the header count from ``begin``, the file ends at ``size``."""
    entry = entry if isinstance(entry, dict) else {}
    shape, span = entry.get("shape"), entry.get("data_offsets")
    if not _naturals(shape) or len(shape) > RANK or not _naturals(span) or len(span) != 2:
        raise CheckpointError(
            f"{where} should have a shape of at most {RANK} and two data_offsets of numbers >= 0, "
            f"found {str(entry)[:SHOWN]}; the file is damaged, fetch it again"
        )
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise CheckpointError(
            f"{where} should have a dtype of {', '.join(dtypes)}, found "
            f"{str(dtype)[:SHOWN]!r}; convert the checkpoint to one of them"
        )
    needed = math.prod(shape) * DTYPES[dtype]
    start, stop = span
    if not start <= stop <= size - begin or stop - start != needed:
        raise CheckpointError(
            f"{where} should have {needed} bytes within {size - begin}, found bytes {start} to "
            f"{stop}; the file is truncated or damaged, fetch it again"
        )
    return TensorSpan(dtype, tuple(shape), begin + start, begin + stop)


def _naturals(value: Any) -> bool:
    """Whether this is a list of whole numbers that a file can have, so that products stay short."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _refuse_overlap(path: Path, spans: dict[str, TensorSpan]) -> None:
    ordered = sorted((s.start, s.stop, name) for name, s in spans.items() if s.start < s.stop)
    for (_, stop, first), (start, _, second) in pairwise(ordered):
        if start < stop:
            raise CheckpointError(
                f"{path}: tensors '{first[:SHOWN]}' and '{second[:SHOWN]}' should lie apart, found "
                "them overlapping; the file is damaged, fetch it again"
            )
