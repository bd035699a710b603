"""Rows grouped by the module path of the user's model, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from seqmix.page.listing import Row, walk

__all__ = ["Group", "Item", "count_ops", "group_rows"]


@dataclass
class Group:
    """Consecutive rows below one module; ``label`` is relative to the group around it."""

    label: str
    path: str
    items: list[Item] = field(default_factory=list)


Item: TypeAlias = "Row | Group"


def group_rows(rows: Sequence[Row], base: tuple[str, ...] = ()) -> list[Item]:
    """Ops in nested groups. ``base`` is the module that they stand in already.

    A module whose rows are interrupted by others gets a group for each run: the order of the graph
    is kept, but for weights and constants, which depend on nothing and move to their first use.
    """
    top = Group("", ".".join(base))
    open_groups = [top]
    steps: list[str] = []
    for row, owner in _at_first_use(rows):
        path = _below(owner, base)
        same = _common(steps, path)
        del open_groups[same + 1 :]
        del steps[same:]
        for step in path[same:]:
            steps.append(step)
            group = Group(step, ".".join([*base, *steps]))
            open_groups[-1].items.append(group)
            open_groups.append(group)
        open_groups[-1].items.append(row)
    return [_joined(item) for item in top.items]


def count_ops(items: Sequence[Item]) -> int:
    """The number of ops below, bodies included."""
    total = 0
    for item in items:
        if isinstance(item, Group):
            total += count_ops(item.items)
        else:
            total += sum(row.kind == "op" for row in walk([item]))
    return total


def _at_first_use(rows: Sequence[Row]) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Rows with their modules; a floating one comes right before the first that reads it.

    A weight has a module of its own, a constant takes that of its reader.
    """
    used = {value for row in rows for value in row.operands}
    floating = {row.results[0]: row for row in rows if row.floating and row.results[0] in used}
    moving = {row.index for row in floating.values()}
    for row in rows:
        if row.index in moving:
            continue
        for value in row.operands:
            if value is not None and (moved := floating.pop(value, None)) is not None:
                yield moved, moved.path or row.path
        yield row, row.path


def _below(path: tuple[str, ...], base: tuple[str, ...]) -> tuple[str, ...]:
    return path[len(base) :] if path[: len(base)] == base else path


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _joined(item: Item) -> Item:
    """A group that holds one group and nothing else is one group with a longer label."""
    if isinstance(item, Row):
        return item
    items = [_joined(inner) for inner in item.items]
    if len(items) == 1 and isinstance(only := items[0], Group):
        return Group(f"{item.label}.{only.label}", only.path, only.items)
    return Group(item.label, item.path, items)
