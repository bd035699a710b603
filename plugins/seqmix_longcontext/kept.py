"""Results of long computations, kept in files so that a killed evaluation goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqmix.reading import UnreadableError, read_json
from seqmix.whole_file import write_whole

__all__ = ["Kept"]


class Kept:
    """A folder of results by what they were made from; each file is whole or not there."""

    def __init__(self, folder: Path) -> None:
        """The folder is made with the first result."""
        self.folder = folder

    def get(self, about: Mapping[str, Any]) -> Any:
        """The result of what ``about`` describes, None where there is none that can be read."""
        try:
            stored = read_json(self.path(about))
        except UnreadableError:
            return None
        known = isinstance(stored, dict) and stored.get("about") == _plain(about)
        return stored.get("result") if known else None

    def put(self, about: Mapping[str, Any], result: Any) -> None:
        """Keep a result, which is JSON."""
        text = json.dumps({"about": _plain(about), "result": result})
        write_whole(self.path(about), text)

    def path(self, about: Mapping[str, Any]) -> Path:
        """The file of a result."""
        digest = hashlib.sha256(json.dumps(_plain(about), sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:24]}.json"


def _plain(about: Mapping[str, Any]) -> Any:
    """As JSON reads it back."""
    return json.loads(json.dumps(about))
