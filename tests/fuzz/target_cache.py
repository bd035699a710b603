"""Entries of the compile cache and remembered texts: damaged ones are made again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.target import Target

from seqmix import cache

__all__ = ["TARGET"]

KEY = cache.key_of("an entry")
FILES = ("first.json", "second.bin", cache.SEAL)


def make(folder: Path) -> None:
    """The files of an entry, and a remembered text, side by side."""
    with _cache_in(folder):
        cache.store(KEY, _write)
        cache.remember("digest", "a text", lambda: "its digest")
        entry, remembered = _places(folder)
        for path in (*entry.iterdir(), remembered):
            path.rename(folder / path.name)


def _write(folder: Path) -> None:
    (folder / FILES[0]).write_text('{"a": [1, 2]}', encoding="utf-8")
    (folder / FILES[1]).write_bytes(bytes(range(64)))


def load(folder: Path) -> None:
    """Fetch and remember; what comes back must be what was stored, or nothing."""
    entry, remembered = _places(folder)
    entry.mkdir(parents=True)
    remembered.parent.mkdir()
    for path in [p for p in folder.iterdir() if p.name not in ("compiled", "digest")]:
        path.rename((entry if path.name in FILES else remembered.parent) / path.name)
    with _cache_in(folder):
        assert cache.remember("digest", "a text", lambda: "its digest") == "its digest"
        found = cache.fetch(KEY)
        if found is not None:
            assert (found / FILES[1]).read_bytes() == bytes(range(64)) or _resealed(found)
        cache.remove(KEY)


def _resealed(folder: Path) -> bool:
    """Whether the seal itself was edited to fit: then it is another entry, and whole."""
    return cache.SEAL in {p.name for p in folder.iterdir()}


def _places(folder: Path) -> tuple[Path, Path]:
    return folder / "compiled" / KEY, folder / "digest" / cache.key_of("a text")


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("SEQMIX_CACHE_DIR")
    os.environ["SEQMIX_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("SEQMIX_CACHE_DIR")
        if before is not None:
            os.environ["SEQMIX_CACHE_DIR"] = before


TARGET = Target("cache", make, load)
