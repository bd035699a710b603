"""The source of a scan: one kernel with the loop over time inside, its carries in registers.

A program runs all steps for one place of the parallel axes, or for ``ROWS`` places of the tiled
one. Constants are loaded before the loop as long as registers hold them; else every step reads
them again, from the cache of the device. A product is ``tl.dot`` where its tiles are 16 wide, else
a sum of broadcast products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.passes.group_index import At, Axis, Index, flat, of_axis
from seqmix_ir.types import FLOATS, TensorType, item_bytes
from seqmix_triton.codegen.expressions import TYPES, carried
from seqmix_triton.codegen.group_source import header
from seqmix_triton.codegen.lowering import identifier
from seqmix_triton.codegen.scan_names import label_of, moves, pointers_of
from seqmix_triton.codegen.scan_plan import ScanPlan, plan_scan
from seqmix_triton.codegen.scan_reads import (
    NotALoopError,
    Reads,
    known_size,
)
from seqmix_triton.codegen.scan_sums import Sums
from seqmix_triton.codegen.tiles import Lanes, Tile, TileAxis, aligned, joint_axes

__all__ = ["ROWS_OF_PRODUCTS", "ScanSource", "write_scan"]

ROWS_OF_PRODUCTS = 16
"""Rows of a program that shares a matrix among them: what ``tl.dot`` needs."""

_MOST_CONSTANT = 144 * 1024
"""Bytes of constants that a program holds; those of float32 count twice, as parts of its products
do. They pass through shared memory once, which has room for no more."""


@dataclass(frozen=True)
class ScanSource:
    """A kernel's text, and what launching it needs."""

    name: str
    text: str
    pointers: tuple[str, ...]
    sizes: Mapping[str, Size]
    parallel: tuple[Size, ...]
    tiled: int | None
    shares: bool
    wide: int
    """Elements of the largest tile per row."""
    held: int
    """Bytes of constants that stay in registers."""
    streamed: bool
    """Whether constants are read again in every step."""
    narrow: str | None
    """The 16-bit dtype of products, if there are any."""
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]


def write_scan(op: Op) -> ScanSource:
    """The kernel of a ``scan`` op; NotALoopError with the reason where its body is none."""
    plan = plan_scan(op)
    made = _Loop(op, plan, hoist=True).source()
    if made.held * (1 if made.narrow else 2) <= _MOST_CONSTANT:
        return made
    return _Loop(op, plan, hoist=False).source()


class _Loop(Sums):
    def __init__(self, op: Op, plan: ScanPlan, hoist: bool) -> None:
        body = plan.body
        makers = {r: o for o in body.ops for r in o.results}
        super().__init__(makers, pointers_of(body.params, plan))
        self._op, self._plan, self._hoist = op, plan, hoist
        self._carries = {p: i for i, p in enumerate(body.params[: plan.carries])}
        last = plan.carries + plan.sequences
        self._slices = {p: i for i, p in enumerate(body.params) if plan.carries <= i < last}
        self._constants = set(body.params[last:])
        self._varying = _varying(body.ops, {*self._carries, *self._slices})
        self._outputs = [f"out_{i}" for i in range(len(body.results))]
        self._time = Axis("t", plan.length)
        self._lanes = Lanes()
        self._tiles: dict[Axis, TileAxis] = {}
        self._held: dict[Value, str] = {}
        self._bytes = 0
        if plan.tiled is not None:
            name = plan.tiled.name
            mask = f"({name} < {self.size(plan.tiled.size)})"
            axis = self._lanes.add(name, "ROWS", mask, ROWS_OF_PRODUCTS if plan.shares else 0)
            self._tiles[plan.tiled] = axis
        self._before: list[str] = []

    def source(self) -> ScanSource:
        """Loads of carries and constants, the loop, stores of the last carries."""
        plan, body = self._plan, self._plan.body
        start = [self._first(param) for param in self._carries]
        after = [self._carry(i) for i in range(plan.carries)]
        for number in range(plan.carries, len(body.results)):
            self._output(number)
        stores = [self._last(i) for i in range(plan.carries)]
        pid = self._programs()
        name = identifier(f"scan_{label_of(body.ops)}")
        casts = [f"{n} = tl.cast({n}, OFFSET)" for n in self.sizes]
        head = [*casts, *pid, *self.head, *start, *self._before]
        text = self._function(name, head, [*self.lines, *moves(after)], stores)
        return ScanSource(
            name,
            header(name, f"{name}, a loop with its carries in registers.", text),
            (*self.names.values(), *self._outputs),
            dict(self.sizes),
            tuple(axis.size for axis in plan.parallel),
            None if plan.tiled is None else plan.parallel.index(plan.tiled),
            plan.shares,
            max(self._wide, 1),
            self._bytes,
            not self._hoist,
            self._narrow,
            tuple(v.type for v in self._op.operands if v is not None),
            tuple(r.type for r in self._op.results),
        )

    def value(self, value: Value, at: At) -> Tile:
        plain = self._plain(at)
        if plain is None or plain == at:
            return super().value(value, at)
        tile = super().value(value, plain)
        back: dict[TileAxis, TileAxis] = {}
        for own, index in zip(plain, at, strict=True):
            if own != index and own.terms:
                back[self._tile_of(own)] = self._tile_of(index)
        return Tile(tile.text, tuple(back.get(axis, axis) for axis in tile.axes))

    def _plain(self, at: At) -> At | None:
        """The place along axes that are named by size alone: what is equal up to names is one.

        None where a place is more than axes.
        """
        found: list[Index] = []
        seen: dict[Axis, Index] = {}
        counts: dict[Size, int] = {}
        for index in at:
            axis = index.axis()
            if (axis is None and index.terms) or axis in seen:
                return None
            if axis is None or axis in self._plan.parallel or axis == self._time:
                found.append(index)
                continue
            counts[axis.size] = number = counts.get(axis.size, 0) + 1
            seen[axis] = of_axis(Axis(f"d{number - 1}", axis.size))
            found.append(seen[axis])
        return tuple(found)

    def _tile_of(self, index: Index) -> TileAxis:
        axis = index.axis()
        if axis is None:
            raise RuntimeError("no axis stands at a place")
        return self.axis_tile(axis).axes[0]

    def axis_tile(self, axis: Axis) -> Tile:
        if axis == self._time:
            return Tile("t")
        if axis in self._plan.parallel and axis is not self._plan.tiled:
            return Tile(axis.name)
        if axis not in self._tiles:
            self._tiles[axis] = self._new_axis(axis)
        made = self._tiles[axis]
        return Tile(made.name, (made,))

    def section(self, value: Value) -> list[str]:
        streamed = value in self._constants and not self._hoist
        return self.lines if value in self._varying or streamed else self._before

    def held(self, value: Value, at: At) -> Tile | None:
        if value not in self._carries:
            return None
        axes: list[TileAxis] = []
        for index, size in zip(at, value.type.shape, strict=True):
            axis = index.axis()
            if size == 1 or (axis in self._plan.parallel and axis is not self._plan.tiled):
                continue
            if axis is None or axis.size != size:
                raise NotALoopError(f"carry {self._carries[value]} is read at a shifted place")
            axes += self.axis_tile(axis).axes
        if len(set(axes)) != len(axes):
            raise NotALoopError(f"carry {self._carries[value]} is read along its diagonal")
        return Tile(self._held[value], tuple(axes))

    def load(self, value: Value, at: At) -> Tile:
        if value in self._carries:
            raise NotALoopError(f"carry {self._carries[value]} is read at a shifted place")
        if value in self._slices:
            shape, place = self._stacked(value.type, at)
            return self.load_at(value, place, shape, self.names[value])
        tile = super().load(value, at)
        if value in self._constants and self._hoist:
            count = math.prod(axis.length or 1 for axis in tile.axes)
            self._bytes += count * item_bytes(value.type.dtype)
        return tile

    def named(
        self,
        stem: str,
        text: str,
        axes: tuple[TileAxis, ...],
        lines: list[str],
        op: Op | None = None,
    ) -> Tile:
        tile = super().named(stem, text, axes, lines, op)
        self._widen(tile.axes)
        return tile

    def _first(self, carry: Value) -> str:
        """The line that loads a carry before the loop."""
        number = self._carries[carry]
        at = self._plan.places[number]
        name = self.fresh(carry.hint or "carry")
        self._held[carry] = name
        address = self.index(flat(at, carry.type.shape))
        axes = self._axes_at(at)
        mask = self.mask(axes)
        zero = "0.0" if carry.type.dtype in FLOATS else "0"
        masked = f", mask={mask}, other={zero}" if mask else ""
        text = f"tl.load({self.names[carry]} + {aligned(address, axes)}{masked})"
        dtype = carry.type.dtype
        to = f".to({TYPES[carried(dtype)]})" if carried(dtype) != dtype else ""
        return f"{name} = {text}{to}"

    def _carry(self, number: int) -> tuple[str, str]:
        """What a carry is called, and the expression of its next value."""
        param = self._plan.body.params[number]
        at = self._plan.places[number]
        axes = self._axes_at(at)
        tile = self._pieced(self._plan.body.results[number], at)
        text = aligned(tile, axes)
        if set(tile.axes) != set(axes):
            blocks = ", ".join(axis.block for axis in axes)
            text = f"tl.broadcast_to({text}, [{blocks}])"
        self._widen(axes)
        return self._held[param], text

    def _pieced(self, value: Value, at: At) -> Tile:
        """A new carry; one that must be cut is put together by choosing among its pieces."""
        reads = Reads(self.makers, self._carries)
        reads.visit(value, at)
        if reads.carries_shifted():
            raise NotALoopError(
                f"a carry of {value.type} is put together from parts that registers hold apart; "
                "make each part a carry of its own"
            )
        return self.value(value, at)

    def _output(self, number: int) -> None:
        """Store a slice of an output, in pieces where it is put together from several."""
        value = self._plan.body.results[number]
        for at in self._places_of(value, self._plan.places[number]):
            tile = self.value(value, at)
            shape, place = self._stacked(value.type, at)
            self.lines.append(self._store(number, tile, flat(place, shape), at))

    def _places_of(self, value: Value, at: At) -> list[At]:
        reads = Reads(self.makers, self._carries)
        reads.visit(value, at)
        if not reads.shifted():
            return [at]
        places: list[At] = [()]
        for index in at:
            axis = index.axis()
            if axis is None or axis in self._plan.parallel:
                places = [(*place, index) for place in places]
                continue
            cuts = reads.cuts(axis)
            places = [
                (*place, _piece(place, stop - start).plus(start))
                for place in places
                for start, stop in itertools.pairwise(cuts)
            ]
        return places

    def _last(self, number: int) -> str:
        """The line that stores a carry behind the loop."""
        param = self._plan.body.params[number]
        at = self._plan.places[number]
        tile = Tile(self._held[param], self._axes_at(at))
        return self._store(number, tile, flat(at, param.type.shape), at)

    def _store(self, number: int, tile: Tile, place: Index, at: At) -> str:
        address = self.index(place)
        axes = joint_axes([tile, address, Tile("", self._axes_at(at))])
        mask = self.mask(axes)
        where = f", mask={mask}" if mask else ""
        name, stored = self._outputs[number], aligned(tile, axes)
        return f"tl.store({name} + {aligned(address, axes)}, {stored}{where})"

    def _axes_at(self, at: At) -> tuple[TileAxis, ...]:
        """The tile axes of a place, in its order."""
        found: list[TileAxis] = []
        for index in at:
            axis = index.axis() or (index.terms[0][0] if index.terms else None)
            if isinstance(axis, Axis):
                found += self.axis_tile(axis).axes
        return tuple(found)

    def _stacked(self, type: TensorType, at: At) -> tuple[tuple[Size, ...], At]:
        """The shape and the place of a slice in the sequence that it is cut from."""
        axis, length = self._plan.axis, self._plan.length
        shape = (*type.shape[:axis], length, *type.shape[axis:])
        now = Index(((self._time, 1),))
        return shape, (*at[:axis], now, *at[axis:])

    def _new_axis(self, axis: Axis) -> TileAxis:
        size = known_size(axis)
        least = 16 if self._plan.shares and size > 4 else 1
        block = max(least, 1 << (size - 1).bit_length())
        name = f"{axis.name}_{size}"
        self.head.append(f"{name} = tl.arange(0, {block})")
        mask = None if block == size else f"({name} < {size})"
        return self._lanes.add(name, str(block), mask, block, size)

    def _programs(self) -> list[str]:
        """Which place of the parallel axes this program has."""
        lines = ["program = tl.program_id(0).to(OFFSET)"]
        axes = self._plan.parallel
        for axis in reversed(axes):
            tiled = axis is self._plan.tiled
            size = self.size(axis.size)
            count = f"tl.cdiv({size}, ROWS)" if tiled else size
            text = f"program % {count}" if axis is not axes[0] else "program"
            text = f"({text}) * ROWS + tl.arange(0, ROWS)" if tiled else text
            lines.append(f"{axis.name} = {text}")
            if axis is not axes[0]:
                lines.append(f"program = program // {count}")
        return lines

    def _function(
        self, name: str, head: Sequence[str], steps: Sequence[str], after: Sequence[str]
    ) -> str:
        pointers = ", ".join((*self.names.values(), *self._outputs))
        length = self.size(self._plan.length)
        sizes = "".join(f"{n}, " for n in self.sizes)
        kept = ", ".join(f'"{n}"' for n in self.sizes)
        last = f"{length} - 1 - " if self._plan.reverse else ""
        return "\n".join(
            [
                f"@triton.jit(do_not_specialize=[{kept}])",
                f"def {name}(",
                f"    {pointers},",
                f"    {sizes}OFFSET: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,",
                "    PRECISION: tl.constexpr,",
                "):",
                *(f"    {line}" for line in head),
                f"    for step in range({length}):",
                f"        t = {last}tl.cast(step, OFFSET)",
                *(f"        {line}" for line in steps),
                *(f"    {line}" for line in after),
                "",
            ]
        )


def _piece(place: At, size: int) -> Index:
    """An axis of this size that a place does not have yet."""
    number = 0
    taken = {index.terms[0][0] for index in place if index.terms}
    while Axis(f"d{number}", size) in taken:
        number += 1
    return of_axis(Axis(f"d{number}", size))


def _varying(ops: Sequence[Op], start: set[Value]) -> set[Value]:
    """The values that change from step to step."""
    found = set(start)
    for op in ops:
        if any(v in found for v in op.operands):
            found.update(op.results)
    return found
