"""Which plugins the user does not want: ``SEQMIX_BLOCK_PLUGINS=distribution-or-name,...``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["BLOCK_VARIABLE", "STRICT_VARIABLE", "blocked_entries", "blocked_entry", "is_strict"]

BLOCK_VARIABLE = "SEQMIX_BLOCK_PLUGINS"
STRICT_VARIABLE = "SEQMIX_STRICT_PLUGINS"


def blocked_entries() -> list[str]:
    """What the variable lists, as written."""
    return [e for e in (p.strip() for p in os.environ.get(BLOCK_VARIABLE, "").split(",")) if e]


def blocked_entry(distribution: str, name: str, entries: Iterable[str]) -> str | None:
    """The entry that blocks a contribution: its distribution's name, or its own."""
    for entry in entries:
        if _normal(entry) == _normal(distribution) or entry == name:
            return entry
    return None


def is_strict() -> bool:
    """Whether a broken plugin is to raise at once."""
    return os.environ.get(STRICT_VARIABLE, "") not in ("", "0")


def _normal(name: str) -> str:
    """Distribution names compare without case, and with ``-``, ``_`` and ``.`` alike."""
    return re.sub(r"[-_.]+", "-", name).lower()
