"""From values at places to lines of a kernel: what group and scan kernels have in common.

An element is asked for at an index (:mod:`seqmix_ir.passes.group_index`); layout ops change the
index, ops of single elements become a line, reductions open an axis of their own, and what no op of
the block makes is loaded. Equal values at equal places are computed once.
"""

from __future__ import annotations

import keyword
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from seqmix_ir.dims import Dim, Opaque, Size, show_size
from seqmix_ir.graph import Op, Value
from seqmix_ir.passes.group_index import (
    At,
    Atom,
    Axis,
    Condition,
    Index,
    Looked,
    Quotient,
    Rest,
    always,
    atoms_of,
    flat,
    never,
)
from seqmix_ir.passes.group_pull import broadcast_at, is_layout, is_pointwise, parts_of
from seqmix_ir.types import FLOATS
from seqmix_triton.codegen.expressions import TYPES, carried, literal, pointwise
from seqmix_triton.codegen.tiles import Tile, TileAxis, aligned, joint_axes

__all__ = ["Lowering", "identifier", "product_of"]


def identifier(text: str) -> str:
    """A name for Python made of any text."""
    name = re.sub(r"\W+", "_", text).strip("_") or "x"
    taken = keyword.iskeyword(name) or name in ("tl", "triton", "row", "rows")
    return f"{name}_" if taken or (name[0].isdigit() and (name := f"x{name}")) else name


def product_of(sizes: Sequence[Size]) -> Size:
    """How many elements a shape holds."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


class Lowering(ABC):
    """Writes the lines of one kernel; subclasses say what the axes are and how leaves are read."""

    def __init__(self, makers: Mapping[Value, Op], names: Mapping[Value, str]) -> None:
        """``makers`` are the ops of the block by result, ``names`` the pointers by leaf."""
        self.lines: list[str] = []
        self.head: list[str] = []
        self.sizes: dict[str, Size] = {}
        self.makers = makers
        self.names = names
        self.counts: dict[str, int] = {}
        self._known: dict[tuple[Value, At], Tile] = {}

    @abstractmethod
    def axis_tile(self, axis: Axis) -> Tile:
        """The index along an axis."""

    @abstractmethod
    def reduced(self, op: Op, at: At) -> Tile:
        """An op that is neither layout nor of single elements."""

    def held(self, value: Value, at: At) -> Tile | None:
        """A value that is in registers; None for what lies in memory."""
        return None

    def section(self, value: Value) -> list[str]:
        """The lines that a value's own line belongs to."""
        return self.lines

    def value(self, value: Value, at: At) -> Tile:
        """A value at a place; anything where the place does not exist."""
        key = (value, at)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._made(value, at)
        return known

    def emit(self, op: Op | None, stem: str, text: str, tiles: Sequence[Tile], to: Value) -> Tile:
        """A line that gives a name to an expression on aligned ``tiles``."""
        return self.named(stem, text, joint_axes(tiles), self.section(to), op)

    def named(
        self,
        stem: str,
        text: str,
        axes: tuple[TileAxis, ...],
        lines: list[str],
        op: Op | None = None,
    ) -> Tile:
        """Give a name to an expression."""
        name = self.fresh(stem)
        note = "" if op is None else f"  # {_note(op)}"
        lines.append(f"{name} = {text}{note}")
        return Tile(name, axes)

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        stem = identifier(stem)
        self.counts[stem] = number = self.counts.get(stem, 0) + 1
        return f"{stem}_{number}"

    def size(self, size: Size) -> str:
        """The text of a size; its names become arguments."""
        if isinstance(size, int):
            return str(size)
        parts = []
        for monomial, coefficient in size.terms:
            factors = [self._size_atom(atom) for atom in monomial]
            text = "*".join([str(coefficient)] * (coefficient != 1 or not factors) + factors)
            parts.append(text.replace("*", " * "))
        joined = " + ".join(parts)
        return joined if len(parts) == 1 and "*" not in joined else f"({joined})"

    def _size_atom(self, atom: str | Opaque) -> str:
        name = atom if isinstance(atom, str) else identifier(str(atom))
        name = f"{name}_" if name in ("OFFSET", "ROWS", "row", "rows") else name
        self.sizes[name] = Dim((((atom,), 1),))
        return name

    def index(self, index: Index) -> Tile:
        """An index as an expression in brackets where it has several parts."""
        tiles = [self._atom(atom) for atom, _ in index.terms]
        axes = joint_axes(tiles)
        parts = []
        for tile, (_, by) in zip(tiles, index.terms, strict=True):
            text = aligned(tile, axes)
            parts.append(text if by == 1 else f"{text} * {self.size(by)}")
        if index.constant != 0 or not parts:
            parts.append(self.size(index.constant))
        text = " + ".join(parts).replace("+ -", "- ")
        return Tile(text if len(parts) == 1 and "*" not in text else f"({text})", axes)

    def _atom(self, atom: Atom) -> Tile:
        if isinstance(atom, Axis):
            return self.axis_tile(atom)
        if isinstance(atom, Looked):
            return self._looked(atom)
        inner = self.index(self.folded(atom.index))
        sign = "//" if isinstance(atom, Quotient) else "%"
        return Tile(f"({inner.text} {sign} {self.size(atom.by)})", inner.axes)

    def folded(self, index: Index) -> Index:
        """The same index with fewer terms, where a kernel has an axis for several."""
        return index

    def _looked(self, atom: Looked) -> Tile:
        found = self.value(atom.value, atom.at)
        text = f"tl.where({found.text} < 0, {found.text} + {self.size(atom.size)}, {found.text})"
        return self.named("index", text, found.axes, self.section(atom.value))

    def condition(self, condition: Condition) -> list[Tile]:
        """The tests that a condition is made of."""
        tile = self.index(self.folded(condition.index))
        tests = []
        if not condition.index.plus(condition.low * -1).not_negative():
            tests.append(Tile(f"({tile.text} >= {self.size(condition.low)})", tile.axes))
        top = condition.index.highest()
        gap = None if top is None else condition.high - 1 - top
        if not (isinstance(gap, int) and gap >= 0):
            tests.append(Tile(f"({tile.text} < {self.size(condition.high)})", tile.axes))
        return tests

    def load(self, value: Value, at: At) -> Tile:
        """An element of a contiguous tensor in memory."""
        return self.load_at(value, at, value.type.shape, self.names[value])

    def load_at(self, value: Value, at: At, shape: tuple[Size, ...], name: str) -> Tile:
        """An element of a tensor of this shape; what lies outside of it or of a tile is 0."""
        address = self.index(self.folded(flat(at, shape)))
        tests = [test for i, n in zip(at, shape, strict=True) for test in self._inside(i, n)]
        axes = joint_axes([address, *tests])
        mask = self.mask(axes, list(dict.fromkeys(tests)))
        dtype = value.type.dtype
        zero = "0.0" if dtype in FLOATS else "0"
        masked = f", mask={mask}, other={zero}" if mask else ""
        text = f"tl.load({name} + {_bare(aligned(address, axes))}{masked})"
        if carried(dtype) != dtype:
            text += f".to({TYPES[carried(dtype)]})"
        return self.named(value.hint or "x", text, axes, self.section(value))

    def _inside(self, index: Index, size: Size) -> list[Tile]:
        """Tests that an index lies within an axis, where that is not sure."""
        tests = [] if index.within(size) else self.condition(Condition(index, 0, size))
        for atom in atoms_of(index):
            if isinstance(atom, Looked):
                found = self.index(Index(((atom, 1),)))
                text = f"(({found.text} >= 0) & ({found.text} < {self.size(atom.size)}))"
                tests.append(Tile(text, found.axes))
            elif isinstance(atom, Quotient | Rest) and not atom.index.not_negative():
                # Devices round towards zero, so that what is below 0 would look inside.
                found = self.index(self.folded(atom.index))
                tests.append(Tile(f"({found.text} >= 0)", found.axes))
        return tests

    def mask(self, axes: Sequence[TileAxis], tests: Sequence[Tile] = ()) -> str:
        """What of a tile is inside and passes the tests; empty where all is."""
        own = [Tile(axis.mask, (axis,)) for axis in axes if axis.mask]
        text = " & ".join(aligned(test, axes) for test in (*own, *tests))
        # The interpreter joins a test of sizes alone and a tile to one of int32: no mask for it.
        return f"(({text}) != 0)" if axes and any(not test.axes for test in tests) else text

    def _made(self, value: Value, at: At) -> Tile:
        if (tile := self.held(value, at)) is not None:
            return tile
        op = self.makers.get(value)
        if op is None:
            return self.load(value, at)
        if is_layout(op):
            return self._layout(op, at)
        if is_pointwise(op):
            return self._pointwise(op, at)
        return self.reduced(op, at)

    def _pointwise(self, op: Op, at: At) -> Tile:
        present = [v for v in op.operands if v is not None]
        tiles = [self.value(v, broadcast_at(at, v)) for v in present]
        axes = joint_axes(tiles)
        text = pointwise(op, [aligned(tile, axes) for tile in tiles])
        if text == tiles[0].text:
            return tiles[0]
        return self.emit(op, op.name, text, tiles, op.results[0])

    def _layout(self, op: Op, at: At) -> Tile:
        if not op.operands:
            return self._source(op, at)
        found: Tile | None = None
        result = op.results[0]
        parts = [p for p in parts_of(op, at) if not any(map(never, p.conditions))]
        first = next((i for i, p in enumerate(parts) if all(map(always, p.conditions))), None)
        kept = parts if first is None else parts[: first + 1]
        for part in reversed(kept):
            tile = self._part(op, part.value, part.at)
            tests = [t for c in _open(part.conditions) for t in self.condition(c)]
            if found is None or not tests:
                found = tile
                continue
            axes = joint_axes([tile, found, *tests])
            mask = " & ".join(aligned(t, axes) for t in tests)
            text = f"tl.where({mask}, {aligned(tile, axes)}, {aligned(found, axes)})"
            found = self.emit(op, op.name, text, [tile, found, *tests], result)
        if found is None:
            raise RuntimeError(f"{op.loc}: nothing is at a place of '{op.name}'")
        return found

    def _part(self, op: Op, value: Value | None, at: At) -> Tile:
        if value is not None:
            return self.value(value, at)
        number = op.defn.attributes()["value"]
        return Tile(literal(number, op.results[0].type.dtype))

    def _source(self, op: Op, at: At) -> Tile:
        has, dtype = op.defn.attributes(), op.results[0].type.dtype
        to = TYPES[carried(dtype)]
        if op.name == "constant":
            text = literal(has["value"], dtype)
        elif op.name == "size":
            text = f"tl.cast({self.size(has['value'])}, {to})"
        else:
            tile = self.index(at[0])
            text = f"tl.cast({_bare(tile.text)}, {to})"
            return self.named(op.name, text, tile.axes, self.section(op.results[0]), op)
        return self.named(op.name, text, (), self.section(op.results[0]), op)


def _open(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    return tuple(c for c in conditions if not always(c))


def _note(op: Op) -> str:
    name = op.name
    if name == "reduce":
        name = f"reduce {op.defn.attributes()['kind']}"
    kinds = ", ".join(show_size(s) for s in op.results[0].type.shape)
    loc = str(op.loc).replace("\n", " ")
    return f"{name} {op.results[0].type.dtype}[{kinds}] at {loc}"


def _bare(text: str) -> str:
    """Without brackets around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]
