"""Locks on files, which end with the process that holds them, however that ends.

Where a file system knows no locks there is nobody to wait for: everybody gets one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from seqmix.whole_file import writing

if sys.platform != "win32":
    import fcntl

__all__ = ["LockFile", "is_at", "try_lock"]

PAUSE = 0.05
"""Seconds between two attempts to get a lock."""


_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""A link in the place of the file may lead to one that must not be written to."""


class LockFile:
    """A file that at most one holds at a time, in this process or in another.

    Threads of one process keep each other out as processes do. It is made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is opened before :meth:`take`."""
        self.path = path
        self.file: int | None = None
        """The descriptor while the lock is held."""

    def take(self, seconds: float = 0.0) -> bool:
        """Wait so long for the lock; whether it is held. WriteError where there can be no file."""
        end = time.monotonic() + seconds
        while not self._attempt():
            if time.monotonic() >= end:
                return False
            time.sleep(PAUSE)
        return True

    def release(self, *, remove: bool = False) -> None:
        """Give it free, and ``remove`` the file; nothing happens when it is not held."""
        if self.file is None:
            return
        try:
            # While it is held: who opened it before then sees that it is at no path any more.
            if remove:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.file)
            self.file = None

    def _attempt(self) -> bool:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
        if try_lock(file, exclusive=True) is False or not is_at(file, self.path):
            os.close(file)
            return False
        self.file = file
        return True


def try_lock(file: int, *, exclusive: bool) -> bool | None:
    """Lock an open file or folder without waiting; None where there are no locks."""
    if sys.platform == "win32":
        return None
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that a path leads to now."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False
