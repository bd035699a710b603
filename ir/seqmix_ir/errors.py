"""The one exception class of the graph IR."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

__all__ = ["IRError", "did_you_mean"]


_LONGEST = 100
_MOST = 1000
"""Letters of a name and number of names that are compared: it takes the product of both lengths."""


class IRError(Exception):
    """A graph, a text or a run that breaks a rule: says where, expected, found, and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'a' or 'b'?`` for names near ``name``, or the empty string."""
    if len(name) > _LONGEST:
        return ""
    compared = [other for other in islice(known, _MOST) if len(other) <= _LONGEST]
    near = get_close_matches(name, compared, n=2)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
