"""YAML of other people, read within bounds: small text can stand for endless values.

An alias repeats what an anchor names, so that ten lines unfold to a billion entries, and a merge
key copies them. Nodes are counted as if they were written out before anything is made of them.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from itertools import accumulate
from typing import Any

from seqmix.reading import UnreadableError, parse_json

__all__ = ["parse_yaml"]

INSTALL = "pip install pyyaml"
LIMIT = 64 << 10
"""Characters: configurations have some thousand, and a second reads a hundred thousand."""
NODES = 10_000
DEPTH = 50
BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}
"""The package takes time in the square of how many are open."""


def parse_yaml(text: str) -> Any:
    """What a YAML text holds, as JSON would: dates are texts, and so are all keys.

    UnreadableError when it is none, is long or unfolds to be long, or names a key twice.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise UnreadableError(f"is YAML, which needs the package pyyaml; {INSTALL}") from error
    if len(text) > LIMIT:
        raise UnreadableError(f"is longer than the {LIMIT} characters that such YAML may have")
    if max(accumulate(BRACKETS.get(c, 0) for c in text), default=0) > DEPTH:
        raise UnreadableError(f"is YAML nested deeper than {DEPTH} levels")
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is None:
            return None
        _count(node, {}, DEPTH)
        return parse_json(json.dumps(loader.construct_document(node), default=str))
    except Exception as error:  # The package raises whatever it likes, IndexError for a bare !!int.
        raise UnreadableError(f"is no readable YAML: {str(error)[:300]}") from error


def _count(node: Any, known: dict[int, int], depth: int) -> int:
    """How many nodes there are when every alias is written out; those counted once are known."""
    if depth == 0:
        raise ValueError(f"it nests deeper than {DEPTH} levels, or in itself")
    if (count := known.get(id(node))) is not None:
        return count
    inner = [] if isinstance(node.value, str) else list(node.value)
    if node.id == "mapping":
        _refuse_twice(inner)
        inner = [part for pair in inner for part in pair]
    count = 1 + sum(_count(part, known, depth - 1) for part in inner)
    if count > NODES:
        raise ValueError(f"it unfolds to more than {NODES} values")
    known[id(node)] = count
    return count


def _refuse_twice(pairs: list[Any]) -> None:
    keys = Counter(key.value for key, _ in pairs if isinstance(key.value, str))
    if twice := next((key for key, count in keys.items() if count > 1), None):
        raise ValueError(f"the key '{twice[:200]}' appears twice")
