"""The header of a GGUF file: metadata and the places of the tensors, every length checked.

The format is that of version 2 and 3, little-endian. Nothing is allocated for a length that the
rest of the file cannot hold.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from seqmix.errors import CheckpointError

__all__ = ["GGUFHeader", "TensorPlace", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")))
STRING, ARRAY = 8, 9
MAX_RANK = 4
HEADER_LIMIT = 128 << 20
"""Bytes: vocabularies of 260,000 tokens and their merges take some 15 MB."""
ENTRIES = 4 << 20
"""Of an array of metadata; merges, the longest, are some 600,000."""


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies. ``shape`` is outermost first; ``start`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GGUFHeader:
    """What stands in front of the data."""

    path: Path
    size: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> GGUFHeader:
    """Metadata and tensors of a file; CheckpointError when it is none, or truncated."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Cursor(path, file, size).header()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


class _Cursor:
    """Reads forward through a file, never past its end."""

    def __init__(self, path: Path, file: Any, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.at = 0

    def header(self) -> GGUFHeader:
        """Everything up to the data."""
        if (magic := self.take(4, "magic")) != MAGIC:
            self.fail("magic", f"expected {MAGIC!r}, found {magic!r}; this is no GGUF file")
        if (version := self.number("I", "version")) not in VERSIONS:
            self.fail("version", f"expected one of {VERSIONS}, found {version}; convert the file")
        tensors, entries = self.number("Q", "tensor count"), self.number("Q", "metadata count")
        self.require(tensors * 24 + entries * 13, "counts")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self.string("metadata key")
            if key in metadata:
                self.fail(f"metadata '{key}'", "should appear once, found it twice")
            metadata[key] = self.value(self.number("I", key), f"metadata '{key}'")
        places = [self.place() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            self.fail("general.alignment", f"expected a number >= 1, found {alignment!r}")
        base = -(-self.at // alignment) * alignment
        named = {n: TensorPlace(n, shape, kind, base + s) for n, shape, kind, s in places}
        if len(named) != len(places):
            self.fail("tensors", "two have the same name")
        return GGUFHeader(self.path, self.size, metadata, named)

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, kind and start of the next tensor; the file has the inner size first."""
        name = self.string("tensor name")
        where = f"tensor '{name}'"
        if (rank := self.number("I", where)) > MAX_RANK:
            self.fail(where, f"expected at most {MAX_RANK} dimensions, found {rank}")
        sizes = [self.number("Q", where) for _ in range(rank)]
        if math.prod(sizes) > 64 * self.size:
            self.fail(where, f"of shape {sizes[::-1]} cannot lie in {self.size} bytes")
        kind, start = self.number("I", where), self.number("Q", where)
        return name, tuple(reversed(sizes)), kind, start

    def value(self, kind: int, where: str) -> Any:
        """A metadata value of a type."""
        if kind == STRING:
            return self.string(where)
        if kind == ARRAY:
            return self.array(where)
        if (code := SCALARS.get(kind)) is None:
            self.fail(where, f"has the unknown type {kind}")
        return self.number(str(code), where)

    def array(self, where: str) -> list[Any]:
        """A metadata array; nested ones are not in use."""
        kind, count = self.number("I", where), self.number("Q", where)
        if count > ENTRIES:
            self.fail(where, f"expected at most {ENTRIES} entries, found {count}")
        if kind == STRING:
            self.require(8 * count, where)
            return [self.string(where) for _ in range(count)]
        if (code := SCALARS.get(kind)) is None:
            self.fail(where, f"is an array of the unsupported type {kind}")
        width = struct.calcsize(f"<{code}")
        return list(struct.unpack(f"<{count}{code}", self.take(count * width, where)))

    def string(self, where: str) -> str:
        """A length and UTF-8 bytes."""
        data = self.take(self.number("Q", where), where)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(where, f"is not UTF-8: {error}")

    def number(self, code: str, where: str) -> Any:
        """One scalar."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), where))[0]

    def take(self, count: int, where: str) -> bytes:
        """The next bytes."""
        self.require(count, where)
        if self.at + count > HEADER_LIMIT:
            self.fail(where, f"the header should have at most {HEADER_LIMIT} bytes")
        data: bytes = self.file.read(count)
        if len(data) != count:
            self.fail(where, "ends early; the file changed while it was read")
        self.at += count
        return data

    def require(self, count: int, where: str) -> None:
        """Refuse a length that the rest of the file cannot hold."""
        if count > self.size - self.at:
            self.fail(
                where,
                f"expected {count} bytes at {self.at}, found {self.size - self.at}; "
                "the file is truncated or damaged, fetch it again",
            )

    def fail(self, where: str, what: str) -> NoReturn:
        """Raise the error."""
        raise CheckpointError(f"{self.path}: {where[:300]}: {what}")
