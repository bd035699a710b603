"""One training per folder: a lock that goes with the process that holds it, however it ends."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from seqmix.errors import ConfigError

if sys.platform != "win32":
    import fcntl

__all__ = ["LOCK_FILE", "FolderLock"]

LOCK_FILE = ".training.lock"

LONGEST = 1000
"""Bytes that are read of who holds a lock."""


class FolderLock:
    """A lock on a folder, held from when it is made until :meth:`release` or the process's end."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; ConfigError that names the other process when it is taken."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        if not _lock(self._file):
            holder = os.read(self._file, LONGEST).decode(errors="replace") or "another process"
            self.release()
            raise ConfigError(
                f"{folder}: {holder} is training into this folder; wait until it is done, end it, "
                "or choose another folder"
            )
        os.truncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def release(self) -> None:
        """Give the folder free; nothing happens the second time."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        """A lock that nobody can release any more is released."""
        self.release()


def _lock(file: int) -> bool:
    """Lock without waiting; where a file system knows no locks, everybody gets one."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
