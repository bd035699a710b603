"""Who writes the graphs of a loop as functions, by the device that its tensors lie on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from seqmix.eager.source import write_function
from seqmix_ir.graph import Graph

__all__ = ["Writer", "Written", "write_with", "writer_for"]


class Written(Protocol):
    """A graph as a function of its inputs, in order; ``source`` is for people to read."""

    @property
    def source(self) -> str: ...

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]: ...


Writer: TypeAlias = "Callable[[Graph], Written]"

_WRITERS: dict[str, Writer] = {"cpu": write_function}


def writer_for(device: str) -> Writer | None:
    """The writer for a type of device (torch's name); None where loops stay loops."""
    return _WRITERS.get(device)


def write_with(device: str, writer: Writer) -> None:
    """Train ``seqmix.scan`` on this type of device by what ``writer`` makes, from now on."""
    _WRITERS[device] = writer
