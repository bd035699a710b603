"""Which states of a graph grow by appending, and rooms with free slots for them.

A state grows when an axis of its input is named P: one slot for every token. It grows by appending
when nothing but one ``concat`` reads it, whose result is the new state. P past slots, C room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqmix_ir.dims import show_size
from seqmix_ir.graph import Graph, Op, Value

__all__ = ["Growing", "find_growing", "room_for"]

_PAST = "P"
_LEAST_ROOM = 64


@dataclass(frozen=True)
class Growing:
    """The growing states of a graph: the axis that grows, and the op that appends."""

    axes: Mapping[str, int]
    appends: Mapping[Op, str]

    def filled(self, states: Mapping[str, Tensor]) -> int:
        """How many slots the states hold; 0 where none grows."""
        return next((states[name].shape[axis] for name, axis in self.axes.items()), 0)

    def trimmed(self, name: str, tensor: Tensor, slots: int) -> Tensor:
        """The first slots of a growing state, another one as it is."""
        axis = self.axes.get(name)
        return tensor if axis is None else tensor.narrow(axis, 0, slots)

    def in_room(self, name: str, tensor: Tensor, room: int) -> Tensor:
        """A copy of a state in memory of its own; a growing one with free slots behind.

        Free slots are 0, and -1 where they are positions.
        """
        axis = self.axes.get(name)
        if axis is None:
            return tensor.clone(memory_format=torch.contiguous_format)
        shape = list(tensor.shape)
        filled, shape[axis] = shape[axis], room
        made = tensor.new_full(shape, 0 if tensor.is_floating_point() else -1)
        made.narrow(axis, 0, filled).copy_(tensor)
        return made


def find_growing(graph: Graph) -> Growing | None:
    """The growing states; None where one of them grows in another way than by appending."""
    axes, appends = {}, {}
    results = {value: name for name, value in graph.results.items()}
    for name, value in graph.inputs.items():
        axis = _past_axis(value)
        if axis is None or not name.startswith("state."):
            continue
        op = _only_reader(graph, value)
        if op is None or not _appends(op, value, axis) or results.get(op.results[0]) != name:
            return None
        axes[name], appends[op] = axis, name
    return Growing(axes, appends)


def room_for(filled: int) -> int:
    """Slots to make room for: always a free one, and twice as many each time it is full."""
    return max(_LEAST_ROOM, 1 << filled.bit_length())


def _past_axis(value: Value) -> int | None:
    for axis, size in enumerate(value.type.shape):
        if not isinstance(size, int) and show_size(size) == _PAST:
            return axis
    return None


def _only_reader(graph: Graph, value: Value) -> Op | None:
    """The one op that reads a value once; None when there are others."""
    readers = [op for op in graph.block.walk() for v in op.operands if v is value]
    returned = value in graph.results.values()
    return readers[0] if len(readers) == 1 and not returned else None


def _appends(op: Op, past: Value, axis: int) -> bool:
    defn: Any = op.defn
    return (
        op.name == "concat"
        and len(op.operands) == 2
        and op.operands[0] is past
        and defn.axis % past.type.rank == axis
    )
