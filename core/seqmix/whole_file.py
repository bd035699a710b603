"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["remove_parts", "whole_file", "write_whole"]


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` at the end, unless writing failed.

    It is on the disk before it takes the name, so that not even a power failure leaves a part of
    it. Raises OSError as writing does; what was at ``path`` is then untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of this content as :func:`whole_file` does; text in UTF-8."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def remove_parts(folder: Path) -> None:
    """Remove what killed processes were writing into a folder that belongs to the caller alone."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let the new name reach the disk too, where a folder can be opened for that."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
