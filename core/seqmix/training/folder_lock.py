"""One training per folder: a lock that goes with the process that holds it, however it ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from seqmix.errors import ConfigError
from seqmix.lock import LockFile

__all__ = ["LOCK_FILE", "FolderLock"]

LOCK_FILE = ".training.lock"

LONGEST = 1000
"""Bytes that are read of who holds a lock."""


class FolderLock:
    """A lock on a folder, held from when it is made until :meth:`release` or the process's end."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; ConfigError that names the other process when it is taken."""
        self._lock = LockFile(folder / LOCK_FILE)
        if not self._lock.take():
            raise ConfigError(
                f"{folder}: {_holder(self._lock.path)} is training into this folder; wait until it "
                "is done, end it, or choose another folder"
            )
        _sign(self._lock.file)

    def release(self) -> None:
        """Give the folder free; nothing happens the second time."""
        self._lock.release()

    def __del__(self) -> None:
        """A lock that nobody can release any more is released."""
        self.release()


def _sign(file: int | None) -> None:
    """Write into the file who holds it."""
    if file is not None:
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST).decode(errors="replace") or "another process"
    except OSError:
        return "another process"
