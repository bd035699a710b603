"""Results of long computations, kept in files so that a killed evaluation goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Kept", "write_whole"]


class Kept:
    """A folder of results by what they were made from; each file is whole or not there."""

    def __init__(self, folder: Path) -> None:
        """The folder is made with the first result."""
        self.folder = folder

    def get(self, about: Mapping[str, Any]) -> Any:
        """The result of what ``about`` describes, None where there is none that can be read."""
        try:
            stored = json.loads(self.path(about).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        known = isinstance(stored, dict) and stored.get("about") == _plain(about)
        return stored["result"] if known else None

    def put(self, about: Mapping[str, Any], result: Any) -> None:
        """Keep a result, which is JSON."""
        text = json.dumps({"about": _plain(about), "result": result})
        write_whole(self.path(about), lambda part: part.write_text(text, encoding="utf-8"))

    def path(self, about: Mapping[str, Any]) -> Path:
        """The file of a result."""
        digest = hashlib.sha256(json.dumps(_plain(about), sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:24]}.json"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path`` and put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _plain(about: Mapping[str, Any]) -> Any:
    """As JSON reads it back."""
    return json.loads(json.dumps(about))
