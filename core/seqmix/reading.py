"""Small files of other people: read within bounds, so that no file can fill memory or never end.

What is here knows nothing of a file's meaning. It raises :class:`UnreadableError`, whose text
follows the file's name in the error of the caller.
"""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from seqmix.errors import SeqmixError

__all__ = ["UnreadableError", "parse_json", "parse_toml", "read_bytes", "read_json", "read_text"]

LIMIT = 16 << 20
"""Bytes: manifests and configurations take kilobytes; parsed, text takes some 30 times its size."""
DEPTH = 64
"""Levels of lists and objects; configurations have about ten, and Python's stack has its end."""
_HALF = re.compile("[\ud800-\udfff]")
_PARTS = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'|[.,=\]}\n]""")
DIGITS = 40
"""Of a whole number: one of 64 bits has 20, and longer ones are slow to show and to compare."""


class UnreadableError(SeqmixError):
    """Why a file or a text cannot be read, without its name."""


def read_bytes(path: Path, limit: int = LIMIT) -> bytes:
    """The content of a regular file of at most ``limit`` bytes; UnreadableError."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError("is no regular file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"cannot be read: {error}") from error
    if len(content) > limit:
        raise UnreadableError(f"is longer than the {limit} bytes that such a file may have")
    return content


def read_text(path: Path, limit: int = LIMIT) -> str:
    """The UTF-8 text of a regular file of at most ``limit`` bytes; UnreadableError."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"is no UTF-8 text: {error}") from error


def read_json(path: Path, limit: int = LIMIT) -> Any:
    """What a JSON file holds; UnreadableError as :func:`parse_json` and :func:`read_text`."""
    return parse_json(read_text(path, limit))


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds.

    UnreadableError when it is none, names a key twice in one object, nests deeper than
    :data:`DEPTH`, or has a whole number of more than :data:`DIGITS` digits.
    """
    try:
        found = json.loads(text, parse_int=_whole_number, object_pairs_hook=_unique)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"is not valid JSON: {error}") from error
    _refuse_deep(found, "JSON")
    return found


def parse_toml(text: str) -> Any:
    """What a TOML text holds; UnreadableError when it is none or nests too deep."""
    _refuse_long_keys(text)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"is not valid TOML: {error}") from error
    _refuse_deep(found, "TOML")
    return found


def _refuse_long_keys(text: str) -> None:
    """UnreadableError for ``a.b.c`` of many parts: tomllib takes memory by their square."""
    dots, before = 0, ""
    for token in _PARTS.findall(text):
        if token == ".":
            dots += 1
        elif before != "." or token in ",=]}\n":
            dots = 0
        if dots > DEPTH:
            raise UnreadableError(f"is TOML with a key of more than {DEPTH} parts")
        before = token


def _whole_number(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits, at most {DIGITS} are read")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in pairs:
        if key in held:
            raise ValueError(f"the key '{key[:200]}' appears twice")
        held[key] = value
    return held


def _refuse_deep(found: Any, form: str) -> None:
    """Level by level, without recursion; UnreadableError for what is out of bounds at any."""
    level = [found]
    for _ in range(DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise UnreadableError(f"is {form} nested deeper than {DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str) and not value.isascii() and _HALF.search(value):
        raise UnreadableError("has half of a surrogate pair, which no text can be written with")
    if isinstance(value, int) and abs(value) >= 10**DIGITS:
        raise UnreadableError(f"has a whole number of more than {DIGITS} digits")
    return []
