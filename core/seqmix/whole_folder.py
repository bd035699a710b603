"""Folders of several files that appear whole or not at all, and replace an earlier one at once.

What is written goes into a folder aside. Where there is no earlier folder it takes the name; with
an earlier one it changes places, which Linux does in one step. Where that cannot be (another
system, a mount point, a folder that one works in) the files move in one by one, between the removal
of the seal and its coming: a folder that was left in the middle has no seal, and no loader takes
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

from seqmix.errors import WriteError
from seqmix.lock import try_lock
from seqmix.whole_file import LEFT_OVER, LONGEST, part_of, sync, writing

__all__ = ["Mark", "mark_of", "read_steadily", "whole_folder"]

T = TypeVar("T")
Mark: TypeAlias = "tuple[int, ...] | None"

TRIES = 5
"""How often a folder is read again that is replaced meanwhile."""

_HERE = -100
_EXCHANGE = 2
"""Of renameat2: names are relative to where one is; both exist and change places."""


@contextmanager
def whole_folder(
    folder: Path | str, seal: str, *, replaces: Collection[str] = (), keep: bool = True
) -> Iterator[Path]:
    """A folder to fill, whose files are at the end those of ``folder``; none if filling failed.

    ``seal`` names the file that tells a complete folder. Other files of an earlier one stay there,
    but for those that it ``replaces`` whether they are written or not; with ``keep`` off none
    stays. WriteError, which is an OSError too, where it cannot be written.
    """
    asked = Path(folder)
    with writing(asked):
        target = asked.resolve()
        aside = _made_aside(target, seal, keep=keep)
        try:
            with writing(asked, aside):
                yield aside
                _sync_all(aside)
                _put(aside, target, seal, replaces, keep=keep)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync(target.parent)


def read_steadily(seal: Path, read: Callable[[], T]) -> T:
    """What ``read`` makes of a folder, which it reads again if that was replaced meanwhile.

    ``seal`` is the file that tells one folder from the next. WriteError when it never stays.
    """
    for _ in range(TRIES):
        before = mark_of(seal)
        try:
            found = read()
        except Exception:
            if mark_of(seal) == before:
                raise
            continue
        if mark_of(seal) == before:
            return found
    raise WriteError(f"{seal.parent}: is being replaced again and again; load it when that is over")


def mark_of(path: Path) -> Mark:
    """What changes when a file is replaced or written to; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _made_aside(target: Path, seal: str, *, keep: bool) -> Path:
    """A new folder: beside the target where it is to take its name, else in it."""
    beside = not target.exists() or _can_change_places(target, seal, keep=keep)
    if beside:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(target)
        aside = part_of(target)
        try:
            aside.mkdir()
        except PermissionError:
            if not target.exists():
                raise
        else:
            return aside
    aside = part_of(target / target.name)
    aside.mkdir()
    return aside


def _can_change_places(target: Path, seal: str, *, keep: bool) -> bool:
    """Whether a folder is an earlier one of its kind, and nothing else that somebody works in."""
    if not (target / seal).is_file() or Path.cwd().is_relative_to(target):
        return False
    return not keep or all(path.is_file() for path in target.iterdir())


def _put(aside: Path, target: Path, seal: str, replaces: Collection[str], *, keep: bool) -> None:
    """Let what lies aside be the folder."""
    if aside.parent == target:
        _move_in(aside, target, seal, replaces, keep=keep)
        return
    if _took_name(aside, target):
        return
    if keep:
        _take_along(target, aside, replaces)
    shutil.copymode(target, aside)
    if not _changed_places(aside, target):
        _move_in(aside, target, seal, replaces, keep=keep)


def _took_name(aside: Path, target: Path) -> bool:
    """Rename where there is nothing yet; False where there is."""
    if target.exists():
        return False
    try:
        aside.rename(target)
    except OSError as error:
        # Meanwhile another process was first.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _changed_places(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where that cannot be."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = (_HERE, os.fsencode(one), _HERE, os.fsencode(other))
    return bool(rename(*names, _EXCHANGE) == 0)


def _take_along(source: Path, aside: Path, replaces: Collection[str]) -> None:
    """Give the new folder the files of the earlier one that it has no others for."""
    for path in source.iterdir():
        new = aside / path.name
        if path.name in replaces or new.exists():
            continue
        try:
            os.link(path, new, follow_symlinks=False)
        except OSError:  # Not every file system has links.
            shutil.copy2(path, new, follow_symlinks=False)


def _move_in(
    aside: Path, target: Path, seal: str, replaces: Collection[str], *, keep: bool
) -> None:
    """Move the files one by one, the seal last; one process after the other."""
    names = sorted((path.name for path in aside.iterdir()), key=lambda name: name == seal)
    with _alone(target):
        (target / seal).unlink(missing_ok=True)
        gone = replaces if keep else _others(target)
        for name in {*gone} - {*names}:
            _remove(target / name)
        for name in names:
            if name == seal:
                sync(target)
            if (target / name).is_dir():
                _remove(target / name)
            (aside / name).replace(target / name)
        sync(target)


def _others(folder: Path) -> set[str]:
    """What is in a folder, but for what processes are writing into it."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".part")}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process moves files into the folder meanwhile."""
    if os.name == "nt":
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        while try_lock(opened, exclusive=True) is False:
            time.sleep(0.01)
        yield
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_all(folder: Path) -> None:
    """Let all that is in a folder reach the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place) / name)
        sync(Path(place))


def _remove_left_over(target: Path) -> None:
    """Remove what killed processes had begun to write, or had replaced, long ago."""
    start = f".{target.name[:LONGEST]}."
    for path in target.parent.iterdir():
        if not (path.name.startswith(start) and path.name.endswith(".part") and path.is_dir()):
            continue
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_OVER:
                shutil.rmtree(path)
