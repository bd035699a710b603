"""Files of a folder that someone else made: no name and no link may lead out of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from seqmix.reading import UnreadableError

__all__ = ["OUTSIDE", "file_inside"]

OUTSIDE = "leads out of its folder"
SNAPSHOTS, BLOBS = "snapshots", "blobs"
"""Folders of the download cache of Hugging Face: files of the first are links into the second."""


def file_inside(folder: Path, name: str) -> Path:
    """The path of a file of a folder, which need not be there.

    UnreadableError when ``name`` is no plain name, or a link of that name leads out of the folder.
    A link may lead to the blobs of the download cache that the folder lies in. The folder itself
    may be a link: whoever names it has chosen it.
    """
    path = folder / name
    if name in ("", ".", "..") or name != Path(name).name:
        raise UnreadableError(OUTSIDE)
    try:
        with suppress(FileNotFoundError):
            path.stat()
        found, roots = path.resolve(), _roots(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # A loop of links, or no name at all.
        raise UnreadableError(f"cannot be read: {error}") from error
    if not any(found.is_relative_to(root) for root in roots):
        raise UnreadableError(f"{OUTSIDE}, to {found}; put a copy of the file into the folder")
    return path


def _roots(folder: Path) -> list[Path]:
    """The folder, and the blobs where it is a snapshot of a download cache or lies in one."""
    caches = [
        place.parent.parent for place in (folder, *folder.parents) if place.parent.name == SNAPSHOTS
    ]
    return [folder, *(cache / BLOBS for cache in caches[:1])]
