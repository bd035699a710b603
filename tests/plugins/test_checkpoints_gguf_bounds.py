"""GGUF files that claim what they do not hold: refused at once, whatever the number."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from seqmix.errors import CheckpointError
from seqmix_checkpoints.gguf_file import GGUFReader
from seqmix_checkpoints.gguf_header import read_header

U32, STRING, ARRAY = 4, 8, 9
Q4_0 = 2


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, value: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + value


def tensor(shape: tuple[int, ...], kind: int = 0, start: int = 0, name: bytes = b"t") -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, start)


def counts(tensors: int, entries: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, entries)


LLAMA = entry(b"general.architecture", STRING, text(b"llama"))
ALIGNED = b"general.alignment"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (counts(2**60, 0), "counts"),
        (counts(0, 2**60), "counts"),
        (counts(2**64 - 1, 2**64 - 1), "counts"),
        (counts(0, 1) + struct.pack("<Q", 2**63), "metadata key"),
        (counts(0, 1) + entry(b"k", STRING, struct.pack("<Q", 2**63)), "metadata 'k'"),
        (counts(0, 1) + entry(b"k", ARRAY, array(U32, 2**60)), "at most 4194304 entries"),
        (counts(0, 1) + entry(b"k", ARRAY, array(STRING, 2**20)), "truncated or damaged"),
        (counts(0, 1) + entry(b"k", ARRAY, array(ARRAY, 1, array(U32, 0))), "unsupported type 9"),
        (counts(0, 1) + entry(b"k", 77, bytes(4)), "unknown type 77"),
        (counts(0, 1) + entry(ALIGNED, U32, bytes(4)), "expected a number >= 1, found 0"),
        (counts(0, 2) + entry(b"k", U32, bytes(4)) * 2, "found it twice"),
        (counts(1, 0) + text(b"t") + struct.pack("<I", 100) + bytes(800), "at most 4 dimensions"),
        (counts(1, 0) + tensor((2**60,)), "cannot lie in"),
        (counts(1, 0) + tensor((2**32, 2**32, 2**32)), "cannot lie in"),
        (counts(2, 0) + tensor((4,)) * 2, "two have the same name"),
        (counts(1, 1) + LLAMA + tensor((4,), start=2**63), "should end at byte"),
        (counts(1, 1) + LLAMA + tensor((4,), start=2**64 - 1), "should end at byte"),
        (counts(1, 1) + LLAMA + tensor((33,), Q4_0), "multiple of 32 for Q4_0"),
        (counts(1, 1) + LLAMA + tensor((32,), 9999), "unknown quantization 9999"),
        (counts(1, 1) + LLAMA + tensor((0, 2**63)), "should"),
        (counts(1, 1) + LLAMA + tensor(()), "rows of a multiple"),
    ],
)
def test_claims(tmp_path: Path, data: bytes, said: str) -> None:
    pytest.importorskip("gguf", reason="GGUF files need the package gguf")
    path = tmp_path / "x.gguf"
    path.write_bytes(data.ljust(256, b"\0") if said != "truncated or damaged" else data)
    started = time.process_time()
    with pytest.raises(CheckpointError, match=rf"x\.gguf.*{said}") as error:
        GGUFReader().read(str(path))
    assert len(str(error.value)) < 1000
    assert time.process_time() - started < 3


def test_alignments_beyond_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    aligned = entry(ALIGNED, 10, struct.pack("<Q", 2**63))
    path.write_bytes(counts(0, 1) + aligned)
    assert read_header(path).metadata == {"general.alignment": 2**63}
    path.write_bytes(counts(1, 2) + LLAMA + aligned + tensor((4,)) + bytes(256))
    with pytest.raises(CheckpointError, match="should end at byte"):
        GGUFReader().read(str(path))
