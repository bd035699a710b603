"""Room in the compile cache: how much it may take, what is in use, and what goes first.

Processes agree through the file system. Who uses an entry holds a shared lock on its seal, which
ends with the process, however that ends. Who needs room takes the lock for itself, and renames the
entry aside before it removes it, so that nobody ever sees half of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from seqmix.errors import ConfigError
from seqmix.lock import is_at, try_lock
from seqmix.whole_file import LEFT_OVER, part_of

__all__ = ["DEFAULT_LIMIT", "SEAL", "drop", "hold", "limit", "make_room", "release"]

SEAL = ".sealed.json"
"""The file that makes a folder an entry. Its time is that of the last use."""

DEFAULT_LIMIT = "20G"

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""A pipe in the place of a seal would wait for someone who writes; a link is no seal."""

_held: dict[Path, int] = {}
"""Descriptors of the locked seals of the entries that this process uses."""

_holding = threading.RLock()
"""Of the threads of this process: one at a time looks at what is held."""


def limit() -> int | None:
    """The most bytes of all entries together, None for no limit (``SEQMIX_CACHE_LIMIT=0``).

    A number with K, M, G or T for powers of 1000, or Ki, Mi, Gi, Ti for powers of 1024; 20G when
    nothing is said. Raises ConfigError for anything else.
    """
    text = os.environ.get("SEQMIX_CACHE_LIMIT", "").strip() or DEFAULT_LIMIT
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise ConfigError(
            "SEQMIX_CACHE_LIMIT should be a number of bytes such as 500M, 10G or 8Gi, or 0 for no "
            f"limit; found {text!r}"
        )
    power = " kmgt".index((found[2] or " ").lower())
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power) or None


def hold(folder: Path) -> bool:
    """Keep an entry until this process ends; False when it is going, or is no entry."""
    with _holding:
        if folder in _held:
            if is_at(_held[folder], folder / SEAL):
                return True
            release(folder)  # Someone has removed it and made it again.
        file = _locked(folder / SEAL)
        if file is None:
            return False
        _held[folder] = file
        return True


def _locked(seal: Path) -> int | None:
    """The descriptor of a seal with a shared lock; None where it is going, or gone."""
    try:
        file = os.open(seal, os.O_RDONLY | _WITHOUT_WAITING)
    except OSError:
        return None
    # Between opening and locking, the entry may have gone: then the path is another file, or none.
    whole = stat.S_ISREG(os.fstat(file).st_mode)
    if not whole or try_lock(file, exclusive=False) is False or not is_at(file, seal):
        os.close(file)
        return None
    return file


def release(folder: Path) -> None:
    """Keep an entry no longer; nothing happens when it was not held."""
    with _holding:
        if (file := _held.pop(folder, None)) is not None:
            os.close(file)


def drop(folder: Path) -> None:
    """Remove an entry, used or not, so that nobody sees half of it; nothing where there is none."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder.rename(part_of(folder)), ignore_errors=True)


def make_room(home: Path, newest: str) -> None:
    """Remove the entries of ``home`` that were used longest ago until the rest fits the limit.

    Those in use stay, and so does ``newest``.
    """
    most = limit()
    if most is None:
        return
    _sweep(home)
    entries = [
        (_last_use(folder), folder, _size(folder)) for folder in _folders(home, hidden=False)
    ]
    total = sum(size for _, _, size in entries)
    for _, folder, size in sorted(entries):
        if total <= most:
            return
        if folder.name != newest and _push_out(folder):
            total -= size


def _sweep(home: Path) -> None:
    """Remove what processes that were killed had begun to write or to remove."""
    for folder in _folders(home, hidden=True):
        if time.time() - _last_use(folder) > LEFT_OVER:
            shutil.rmtree(folder, ignore_errors=True)


def _push_out(folder: Path) -> bool:
    """Remove an entry unless it is in use; whether it is gone, by this process or by another."""
    try:
        with _alone(folder) as alone:
            if not alone:
                return False
            aside = folder.rename(part_of(folder))
    except OSError:
        return not folder.exists()
    shutil.rmtree(aside, ignore_errors=True)
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether nobody uses an entry, nor can begin to until this ends."""
    if sys.platform == "win32":
        yield True  # There, a folder with an open file cannot be renamed.
        return
    seal = folder / SEAL
    try:
        file = os.open(seal, os.O_RDWR)
    except FileNotFoundError:
        yield True  # Without a seal it is damaged, and nobody's.
        return
    try:
        # Meanwhile it may have gone, and come again: then the lock is on a file of the old one.
        # Where there are no locks, entries can be used but not pushed out.
        yield try_lock(file, exclusive=True) is True and is_at(file, seal)
    finally:
        os.close(file)


def _folders(home: Path, *, hidden: bool) -> list[Path]:
    """The entries, or what is on its way to be one or from it."""
    try:
        return [p for p in home.iterdir() if p.is_dir() and p.name.startswith(".") == hidden]
    except OSError:
        return []


def _last_use(folder: Path) -> float:
    """The time of the seal; of the folder where there is none."""
    for path in (folder / SEAL, folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    """Bytes of the files below a folder; what vanishes meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
