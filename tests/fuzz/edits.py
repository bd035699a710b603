"""Edits of small valid files: bytes, text, JSON, the header of safetensors, and what a file is.

An edit is four whole numbers, so that Hypothesis can draw, shrink and repeat it; every number has a
meaning for every file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

__all__ = ["Edit", "Files", "Link", "edited", "edits"]

TOP = 1 << 16
LONGEST = 1 << 19
NUMBERS = (0, 1, 7, 255, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]

HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 17, 2**31, 2**60, 2**70, 10**400, -(10**18), 0.5, 1e308,
    float("inf"), float("nan"), "", "1", "x" * 3000, "../../../etc/passwd", "/etc/passwd", "a\0b",
    "..", ".", "\ud800", "\u202e", "%s{}", [], {}, [[]], [1] * 70, [2**62] * 3, {"a": 1},
    ["a", "a"], [-1], [None], DEEP,
)  # fmt: skip

PIECES = (
    "[", "]", "{", "}", "(", ")", ",", ":", "=", "->", "%0", "@x", '"', "'", "\\", "-", "1e999",
    "nan", "inf", "none", "9" * 5000, "0x" + "f" * 6000, str(2**63), "99999999999999999999", "0",
    "-1", "\n", "\0", "\ufeff", "é", "[" * 3000, '{"a":' * 3000, "a." * 3000 + "a=1\n", "a" * 5000,
    "min(", "*S", "f32[", "body", "true", "#", "[[", "]]", "2024-01-01", "//",
)  # fmt: skip

LINKS = ("/etc/passwd", "/dev/zero", "../outside", ".", "missing", "pipe")


@dataclass(frozen=True)
class Link:
    """A symbolic link where a file was; ``pipe`` stands for a named pipe."""

    to: str


Files: TypeAlias = "dict[str, bytes | Link]"


@dataclass(frozen=True)
class Edit:
    """Which file, what is done, where, and with which value."""

    file: int
    action: int
    at: int
    value: int


def edits(most: int = 3) -> st.SearchStrategy[list[Edit]]:
    """One to ``most`` edits."""
    number = st.integers(0, TOP - 1)
    return st.lists(st.builds(Edit, number, number, number, number), min_size=1, max_size=most)


def edited(files: Files, changes: Sequence[Edit]) -> Files:
    """The files after the edits, one after another."""
    result = dict(files)
    for edit in changes:
        names = sorted(result)
        if not names:
            break
        _edit(result, names[edit.file % len(names)], edit)
    return result


def _edit(files: Files, name: str, edit: Edit) -> None:
    content = files[name]
    if edit.action % 40 == 39:
        del files[name]
    elif edit.action % 40 == 38 or isinstance(content, Link):
        files[name] = Link(LINKS[edit.value % len(LINKS)])
    else:
        actions = _actions(name)
        files[name] = actions[edit.action % len(actions)](content, edit)


def _actions(name: str) -> Sequence[Callable[[bytes, Edit], bytes]]:
    """What suits the kind of file; the more structure the edits keep, the further they get."""
    suffix = name.rpartition(".")[2]
    if suffix == "json":
        return (_json, _json, _json, _json, _text, _bytes)
    if suffix == "safetensors":
        return (_header, _header, _header, _bytes)
    if suffix in ("txt", "toml", "yaml", "jinja"):
        return (_text, _text, _text, _bytes)
    return (_bytes,)


def _place(edit: Edit, size: int) -> int:
    return edit.at * size // TOP


def _bytes(data: bytes, edit: Edit) -> bytes:
    """A bit, a byte, a number, a slice that goes or comes twice, or a shorter file."""
    at, value = _place(edit, len(data)), edit.value
    head, tail = data[:at], data[at:]
    number = NUMBERS[value % len(NUMBERS)]
    step = 1 + value % 40
    return [
        head + bytes([(tail[0] if tail else 0) ^ 1 << value % 8]) + tail[1:],
        head + bytes([value % 256]) + tail[1:],
        head + number.to_bytes(8, "little") + tail[8:],
        head + (number & 0xFFFFFFFF).to_bytes(4, "little") + tail[4:],
        head + tail[step:],
        head + tail[:step] + tail,
        head,
        head + bytes(value % 300) + tail,
    ][edit.action // 7 % 8]


def _text(data: bytes, edit: Edit) -> bytes:
    """Tokens that go, come twice, change places, or become something hostile."""
    tokens = re.findall(r"\w+|\s+|[^\w\s]", data.decode("utf-8", "replace"))
    at = _place(edit, len(tokens))
    other = tokens[edit.value % len(tokens)] if tokens else ""
    piece = PIECES[edit.value % len(PIECES)]
    few = 1 + edit.value % 6
    changed = [
        [*tokens[:at], piece, *tokens[at:]],
        [*tokens[:at], piece, *tokens[at + 1 :]],
        [*tokens[:at], other, *tokens[at + 1 :]],
        [*tokens[:at], *tokens[at + few :]],
        [*tokens[: at + few], *tokens[at:]],
        [*tokens[:at], *_repeated(tokens[at : at + few]), *tokens[at + few :]],
    ][edit.action // 7 % 6]
    return "".join(changed).encode("utf-8", "surrogatepass")


def _repeated(tokens: list[str]) -> list[str]:
    """Many times, but never so many that the edited file alone takes the memory of a machine."""
    return tokens * min(300, 1 + LONGEST // max(1, sum(map(len, tokens))))


def _json(data: bytes, edit: Edit) -> bytes:
    """A value of a JSON file becomes hostile, another's, or goes."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return _text(data, edit)
    return json.dumps(_changed(root, edit)).encode()


def _changed(root: Any, edit: Edit) -> Any:
    places = list(_places(root, 0))
    if not places:
        return HOSTILE[edit.value % len(HOSTILE)]
    holder, key = places[_place(edit, len(places))]
    kind = edit.action // 7 % 5
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, its = places[edit.value % len(places)]
        holder[key] = json.loads(json.dumps(other[its]))
    elif kind == 2 and isinstance(holder, dict):
        holder[str(HOSTILE[edit.value % len(HOSTILE)])[:40]] = holder[key]
    else:
        holder[key] = HOSTILE[edit.value % len(HOSTILE)]
    return root


def _places(value: Any, depth: int) -> Any:
    """Every holder and key of a JSON value."""
    if depth > 20 or not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key], depth + 1)


def _header(data: bytes, edit: Edit) -> bytes:
    """The header of a safetensors file as JSON; its length is right again."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        return _bytes(data, edit)
    header = _json(data[8 : 8 + length], edit)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]
