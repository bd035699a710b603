"""Tensors of a kernel by the axes that they vary along, and the text that lines them up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Lanes", "Tile", "TileAxis", "aligned", "joint_axes"]


@dataclass(frozen=True, eq=False)
class TileAxis:
    """An axis of tiles: its block, and the mask of what is inside (None where all is)."""

    name: str
    order: int
    block: str
    mask: str | None = None
    length: int = 0
    """The block as a number, where it is one."""
    size: int = 0
    """How many places are inside, where that is a number."""


@dataclass(frozen=True)
class Tile:
    """A name in the source, and the axes of what it stands for; without axes a scalar."""

    text: str
    axes: tuple[TileAxis, ...] = ()


@dataclass
class Lanes:
    """How the axes of a graph's values are spread: index text and tile axis of each."""

    made: list[TileAxis] = field(default_factory=list)

    def add(
        self, name: str, block: str, mask: str | None = None, length: int = 0, size: int = 0
    ) -> TileAxis:
        """A new axis of tiles, behind those that there are."""
        axis = TileAxis(name, len(self.made), block, mask, length, size)
        self.made.append(axis)
        return axis


def joint_axes(tiles: Iterable[Tile]) -> tuple[TileAxis, ...]:
    """The axes of what several tiles broadcast to."""
    axes = {axis for tile in tiles for axis in tile.axes}
    return tuple(sorted(axes, key=lambda axis: axis.order))


def aligned(tile: Tile, axes: Sequence[TileAxis]) -> str:
    """The tile with an axis of size 1 for each of ``axes`` that it lacks."""
    if not tile.axes:
        return tile.text
    text, order = tile.text, [axes.index(axis) for axis in tile.axes]
    if order != sorted(order):
        perm = tuple(sorted(range(len(order)), key=order.__getitem__))
        text = f"tl.permute({text}, {perm})"
    if len(tile.axes) == len(axes):
        return text
    return f"{text}[{', '.join(':' if axis in tile.axes else 'None' for axis in axes)}]"
