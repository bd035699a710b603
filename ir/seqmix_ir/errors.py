"""The one exception class of the graph IR."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["IRError", "did_you_mean"]


class IRError(Exception):
    """A graph, a text or a run that breaks a rule: says where, expected, found, and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'a' or 'b'?`` for names near ``name``, or the empty string."""
    near = get_close_matches(name, list(known), n=2)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
