"""Files that appear whole or not at all, whatever happens while they are written.

Every file that the library writes goes this way; folders of several files go that of
:mod:`seqmix.whole_folder`.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from seqmix.errors import WriteError

__all__ = [
    "LEFT_OVER",
    "part_of",
    "remove_parts",
    "sync",
    "whole_file",
    "whole_place",
    "write_whole",
    "writing",
]

LEFT_OVER = 24 * 3600
"""Seconds after which what was being written or removed belongs to nobody any more."""

LONGEST = 150
"""Characters of a name that stand in that of its part: file systems have room for 255 bytes."""

_numbers = itertools.count()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` at the end, unless writing failed.

    It is on the disk before it takes the name, so that not even a power failure leaves a part of
    it. WriteError, which is an OSError too, where it cannot be written; what was at ``path`` is
    then untouched.
    """
    with whole_place(path) as part, part.open("wb") as file:
        yield file


@contextmanager
def whole_place(path: Path) -> Iterator[Path]:
    """A place for a file that a library writes itself; then as :func:`whole_file`.

    A link stays one, and the file that it leads to is replaced. What is no regular file, such as
    ``/dev/stdout``, is written to as it is.
    """
    with writing(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path
            return
        target = path.resolve() if path.is_symlink() else path
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(target)
        part = part_of(target)
        try:
            part.touch()
            mode = part.stat().st_mode
            yield part
            part.chmod(mode)  # Some libraries write files that nobody else may read.
            sync(part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        sync(target.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of this content as :func:`whole_file` does; text in UTF-8."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def remove_parts(folder: Path) -> None:
    """Remove what killed processes were writing into a folder that belongs to the caller alone."""
    for part in folder.glob(".*.part"):
        if part.is_file():
            part.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str, aside: Path | None = None) -> Iterator[None]:
    """Make a WriteError that names ``path`` of what the system says against writing to it.

    It is called so even if it lies ``aside`` yet, under a name that nobody has heard of.
    """
    try:
        yield
    except OSError as error:
        said = str(error) if aside is None else str(error).replace(str(aside), str(path))
        if not isinstance(error, WriteError):
            said = (
                f"{path}: cannot be written: {said}; what was there before is as it was: make "
                "room, or choose another place"
            )
        raise WriteError(said, error.errno) from error


def part_of(path: Path) -> Path:
    """A hidden name beside ``path`` that nobody else uses, in whatever process or thread."""
    own = f"{os.getpid()}-{next(_numbers)}"
    return path.with_name(f".{path.name[:LONGEST]}.{own}.part")


def sync(path: Path) -> None:
    """Let a file reach the disk; or a folder's names, where a folder can be opened for that."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return
    opened = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(opened)
    except OSError:
        # Some file systems cannot do that with folders; what is in a file must be there.
        if not folder:
            raise
    finally:
        os.close(opened)


def _remove_left_over(path: Path) -> None:
    """Remove parts of this file that killed processes left behind long ago."""
    pattern = f".{glob.escape(path.name[:LONGEST])}.*-*.part"
    for part in path.parent.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFT_OVER:
                part.unlink()
