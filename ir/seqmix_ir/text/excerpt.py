"""What to leave out of a long graph that is printed for people, so that its messages stand out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from seqmix_ir.graph import Block, Op

__all__ = ["clipped", "few", "windows"]

T = TypeVar("T")

_AROUND = 4
"""Ops that are shown before and after one with a message; as few are never left out."""

_LONGEST = 240
_MOST = 24


def windows(block: Block, noted: Collection[Op]) -> Iterator[tuple[list[Op], bool]]:
    """Runs of ops in order, each with whether to show it: those near an op with a message.

    An op counts when its body holds one. The last ops stand in when no op has a message.
    """
    ops = block.ops
    centres = [i for i, op in enumerate(ops) if _is_noted(op, noted)] or [len(ops)]
    near = {i for c in centres for i in range(c - _AROUND, c + _AROUND + 1)}
    runs = groupby(range(len(ops)), lambda i: i in near)
    for seen, places in runs:
        run = [ops[i] for i in places]
        yield run, seen or len(run) <= _AROUND


def few(items: Sequence[T], show: Callable[[T], str]) -> list[str]:
    """The items, or when they are too many the first ones and how many more there are."""
    if len(items) <= _MOST:
        return [show(item) for item in items]
    return [*(show(item) for item in items[:_MOST]), f"... {len(items) - _MOST} more"]


def clipped(text: str) -> str:
    """The text, or the beginning of a long one."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_noted(op: Op, noted: Collection[Op]) -> bool:
    if op in noted:
        return True
    return op.body is not None and any(inner in noted for inner in op.body.walk())
