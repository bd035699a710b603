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
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from seqmix.errors import ConfigError

if sys.platform != "win32":
    import fcntl

__all__ = ["DEFAULT_LIMIT", "SEAL", "hold", "limit", "make_room", "release"]

SEAL = ".sealed.json"
"""The file that makes a folder an entry. Its time is that of the last use."""

DEFAULT_LIMIT = "20G"

LEFT_OVER = 24 * 3600
"""Seconds after which a folder that was being written or removed belongs to nobody any more."""

_held: dict[Path, int] = {}
"""Descriptors of the locked seals of the entries that this process uses."""


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
    seal = folder / SEAL
    if folder in _held:
        if _is_at(_held[folder], seal):
            return True
        release(folder)  # Someone has removed it and made it again.
    try:
        file = os.open(seal, os.O_RDONLY)
    except OSError:
        return False
    # Between opening and locking, the entry may have gone: then the path is another file, or none.
    if not _lock(file, exclusive=False) or not _is_at(file, seal):
        os.close(file)
        return False
    _held[folder] = file
    return True


def release(folder: Path) -> None:
    """Keep an entry no longer; nothing happens when it was not held."""
    if (file := _held.pop(folder, None)) is not None:
        os.close(file)


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
    aside = folder.with_name(f".removing-{folder.name}-{os.getpid()}")
    try:
        with _alone(folder) as alone:
            if not alone:
                return False
            folder.rename(aside)
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
        yield _lock(file, exclusive=True) and _is_at(file, seal)
    finally:
        os.close(file)


def _lock(file: int, *, exclusive: bool) -> bool:
    """Lock without waiting. Where there are no locks, entries can be used but not pushed out."""
    if sys.platform == "win32":
        return True
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not exclusive
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


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
