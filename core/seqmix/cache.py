"""The compile cache on disk: entries appear whole or not at all, and a broken one is rebuilt.

It lives in ``$SEQMIX_CACHE_DIR``, else in ``~/.cache/seqmix``; ``SEQMIX_NO_CACHE=1`` turns it off.
Processes share it: an entry is written aside and renamed into place, and the first one to arrive
wins. ``SEQMIX_CACHE_LIMIT`` is the most bytes that it keeps: a new entry pushes out those that were
used longest ago, whole, by a rename. An entry that a process has fetched is locked for as long as
that process lives, for a loaded executable may go back to its files; it is never pushed out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seqmix.cache_room import SEAL, drop, hold, limit, make_room, release
from seqmix.lock import LockFile
from seqmix.reading import UnreadableError, read_json, read_text
from seqmix.whole_file import write_whole

__all__ = [
    "SEAL",
    "clear",
    "directory",
    "enabled",
    "fetch",
    "key_of",
    "limit",
    "one_writer",
    "remember",
    "remove",
    "store",
]

PATIENCE = 600.0
"""Seconds to wait for another process that makes the same entry; the slowest takes minutes."""


def directory() -> Path:
    """Where the cache lives; it need not exist."""
    if chosen := os.environ.get("SEQMIX_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqmix"


def enabled() -> bool:
    """False when the environment says ``SEQMIX_NO_CACHE=1``."""
    return os.environ.get("SEQMIX_NO_CACHE", "") in ("", "0")


def clear() -> None:
    """Remove every entry, used or not."""
    for kind in ("compiled", "digest", "auto"):
        shutil.rmtree(directory() / kind, ignore_errors=True)


def key_of(*parts: str) -> str:
    """One sha256 over several texts, none of which can run into the next."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")  # Names of files may be any bytes.
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()


def fetch(key: str) -> Path | None:
    """The folder of an entry, or None when there is none; a damaged one is removed.

    The entry stays until this process ends. ConfigError when the limit cannot be read: said here,
    it comes before a compilation and not after it.
    """
    limit()
    folder = directory() / "compiled" / key
    if not folder.is_dir() or folder.is_symlink():
        return None
    # What has a seal but cannot be held is on its way out.
    held = hold(folder)
    if not held and (folder / SEAL).is_file():
        return None
    if not held or not _is_whole(folder):
        remove(key)
        return None
    with contextlib.suppress(OSError):  # In a cache of someone else's, times cannot be set.
        os.utime(folder / SEAL)
    return folder


def store(key: str, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a folder and make it an entry; without effect where one cannot write.

    Then the entries that were used longest ago go until the rest fits the limit; the new one stays
    even when it alone is larger. What ``write`` itself raises is passed on.
    """
    home = directory() / "compiled"
    try:
        home.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
    except OSError:
        return
    try:
        write(aside)
        (aside / SEAL).write_text(json.dumps(_digests(aside)), encoding="utf-8")
        # A folder is not renamed over one that has content: then another process was first.
        if not (home / key).exists():
            aside.rename(home / key)
    except OSError:
        return
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    make_room(home, key)


@contextmanager
def one_writer(key: str) -> Iterator[None]:
    """Let one process or thread after the other make an entry: who waited finds it made.

    Who waits for too long, or where there can be no lock, makes it as well: that is only slower.
    """
    lock = LockFile(directory() / "locks" / key)
    with contextlib.suppress(OSError):
        lock.take(PATIENCE)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.release(remove=True)


def remove(key: str) -> None:
    """Drop an entry, used or not; nothing happens when there is none."""
    folder = directory() / "compiled" / key
    release(folder)
    drop(folder)


def remember(kind: str, text: str, compute: Callable[[], str]) -> str:
    """A short text that is computed once for each ``text``, such as the digest of a file."""
    if not enabled():
        return compute()
    path = directory() / kind / key_of(text)
    try:
        known = read_text(path)
    except UnreadableError:
        known = ""
    value, _, check = known.partition("\n")
    if known and check == key_of(value):
        return value
    value = compute()
    with contextlib.suppress(OSError):  # Where one cannot write, nothing is remembered.
        if path.is_symlink() or not path.is_file():
            path.unlink(missing_ok=True)  # A pipe would wait for a reader, a link leads elsewhere.
        write_whole(path, f"{value}\n{key_of(value)}")
    return value


def _is_whole(folder: Path) -> bool:
    try:
        return bool(read_json(folder / SEAL) == _digests(folder))
    except (OSError, UnreadableError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file below ``folder`` but the seal, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise UnreadableError(f"{path} is a link, which no entry has")
        if not path.is_file() or path.name == SEAL:
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = digest
    return found
