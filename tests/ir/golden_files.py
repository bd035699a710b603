"""Golden files: an input and what must become of it, one behaviour per file.

``SEQMIX_UPDATE_GOLDEN=1`` writes what is found instead of comparing; read the diff afterwards.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SPLIT", "check_golden", "golden_files", "golden_input"]

SPLIT = "// ---- becomes ----\n"
_ROOT = Path(__file__).parent / "golden"


def golden_files(folder: str) -> list[Path]:
    """The files of one kind, sorted; there must be some."""
    files = sorted((_ROOT / folder).glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no golden files in {_ROOT / folder}")
    return files


def golden_input(path: Path) -> str:
    """What stands above the line that splits the file."""
    return path.read_text().partition(SPLIT)[0]


def check_golden(path: Path, found: str) -> None:
    """Compare with what stands below the line, or write it there."""
    given, _, expected = path.read_text().partition(SPLIT)
    found = found.rstrip("\n") + "\n"
    if os.environ.get("SEQMIX_UPDATE_GOLDEN") == "1":
        path.write_text(given + SPLIT + found)
        return
    assert found == expected, f"{path.name}: SEQMIX_UPDATE_GOLDEN=1 writes what is found"
