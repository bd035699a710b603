"""Computing one element of a value: read from memory, given, or made by the rule of its op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.place import Index, Place, Sizes, present
from seqmix_tvm.writer import Writer

__all__ = ["Frame", "Rule"]

Rule: TypeAlias = "Callable[[Frame, Op, Index], tvm.Expr]"


class Frame:
    """What is known inside a kernel: where values lie, and which ops make the others."""

    def __init__(
        self, writer: Writer, sizes: Sizes, rules: Mapping[str, Rule], ops: Mapping[Value, Op]
    ) -> None:
        """``ops`` makes values that lie nowhere; ``rules`` say how, by the name of the op."""
        self.writer = writer
        self.sizes = sizes
        self.places: dict[Value, Place] = {}
        self.given: dict[Value, tvm.Expr] = {}
        self._rules = rules
        self._ops = ops

    def index(
        self, shape: tuple[Size, ...], axes: tuple[tvm.Expr, ...] | None = None, flat: object = None
    ) -> Index:
        """A place in a tensor of a shape."""
        return Index(self.sizes, shape, axes, flat)

    def at(self, value: Value | None, index: Index) -> tvm.Expr:
        """The element of a value at an index, computed once in an open block."""
        value = present(value)
        if value in self.given:
            return self.given[value]
        key = (value, self.writer.keep(index))
        return self.writer.once(key, lambda: self._made(value, index))

    def _made(self, value: Value, index: Index) -> tvm.Expr:
        if value in self.places:
            return self.writer.bind(self.places[value].load(index), "x")
        op = self._ops[value]
        return self._rules[op.name](self, op, index)

    def producer(self, value: Value) -> Op | None:
        """The op that makes a value here, None for one that lies in memory or is given."""
        return self._ops.get(value) if value not in self.places else None

    def made(self, value: Value) -> Op:
        """The op that makes a value which lies nowhere."""
        return self._ops[value]

    def broadcast(self, value: Value | None, index: Index) -> tvm.Expr:
        """The element of an operand that broadcasts to the tensor that ``index`` is a place in."""
        value = present(value)
        shape = value.type.shape
        if shape == index.shape:
            return self.at(value, index)
        return self.at(value, self.narrowed(index, shape))

    def narrowed(self, index: Index, shape: tuple[Size, ...]) -> Index:
        """The place in a tensor of ``shape`` that broadcasts to the one of ``index``."""
        key = ("narrowed", self.writer.keep(index), shape)

        def make() -> Index:
            own = index.axes[len(index.shape) - len(shape) :]
            zero = tvm.integer(0)
            return self.index(
                shape, tuple(zero if s == 1 else a for s, a in zip(shape, own, strict=True))
            )

        found: Index = self.writer.once(key, make)
        return found

    def save(self, value: Value, index: Index, element: tvm.Expr) -> None:
        """Store an element of a value that has a place."""
        place = self.places[value]
        self.writer.store(place.buffer, place.where(index), place.stored(element))
