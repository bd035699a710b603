"""A GGUF file with a tokenizer: its bytes, and the same file written from a description of it.

An edited description keeps every length right, so that what is wrong is found further on.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.fuzz.target import Target
from tests.fuzz.target_huggingface import read_all
from tests.plugins.checkpoint_samples import foreign_weights, write_gguf

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.reading import UnreadableError, parse_json, read_bytes

__all__ = ["TARGET"]

SPEC, RAW, MADE = "spec.json", "tiny.gguf", "made.gguf"
STRING, ARRAY, FLOAT, BOOL = 8, 9, 6, 7
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, BOOL: 1, 10: 8, 11: 8}
DATA = 64 << 10


def make(folder: Path) -> None:
    """The file; a description in which numbers stand for their types as in the format."""
    write_gguf(folder / RAW, foreign_weights())
    from seqmix_checkpoints.gguf_header import read_header

    header = read_header(folder / RAW)
    base = min(place.start for place in header.tensors.values())
    spec = {
        "metadata": [[key, _kind(value), value] for key, value in header.metadata.items()],
        "tensors": [
            [place.name, list(place.shape[::-1]), place.kind, place.start - base]
            for place in header.tensors.values()
        ],
    }
    (folder / SPEC).write_text(json.dumps(spec), encoding="utf-8")


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return BOOL
    return {int: 4, float: FLOAT, str: STRING, list: ARRAY}[type(value)]


def load(folder: Path) -> None:
    """Both; what one of them says of itself is no matter to the other."""
    failed = None
    for path in (folder / RAW, folder / MADE):
        try:
            if path.name == MADE:
                path.write_bytes(_written(parse_json(read_bytes(folder / SPEC))))
            read_all(resolve(path))
        except UnreadableError:
            continue  # The description itself is none any more.
        except CheckpointError as error:
            failed = error
    if failed is not None:
        raise failed


def _written(spec: Any) -> bytes:
    """The file of a description; what a field cannot hold becomes something that it can."""
    spec = spec if isinstance(spec, dict) else {}
    metadata = [e for e in _list(spec.get("metadata")) if len(_list(e)) == 3]
    tensors = [e for e in _list(spec.get("tensors")) if len(_list(e)) == 4]
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, kind, value in metadata:
        parts += [_text(key), _number(kind, 4), _value(kind, value)]
    for name, shape, kind, start in tensors:
        sizes = [_number(size, 8) for size in _list(shape)]
        parts += [_text(name), _number(len(sizes), 4), *sizes, _number(kind, 4), _number(start, 8)]
    head = b"".join(parts)
    return head + bytes(-len(head) % 32) + bytes(DATA)


def _value(kind: Any, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        values = _list(value)
        inner = _kind(values[0]) if values and type(values[0]) in (int, float, str, list) else 4
        body = b"".join(_value(inner, one) for one in values)
        return _number(inner, 4) + _number(len(values), 8) + body
    if kind == FLOAT:
        number = value if isinstance(value, int | float) and abs(value) < 1e30 else float("nan")
        return struct.pack("<f", number)
    return _number(value, WIDTHS.get(kind, 4) if isinstance(kind, int) else 4)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> bytes:
    data = str(value).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _number(value: Any, width: int) -> bytes:
    whole = int(value) if isinstance(value, int) else 0
    return (whole % (1 << 8 * width)).to_bytes(width, "little")


TARGET = Target("gguf", make, load)
