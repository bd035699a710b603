"""Products and reductions in the body of a loop, written over the axes that they run over.

A product is ``tl.dot`` where its tiles are 16 wide, else a sum of broadcast products. Where what is
summed is put together from parts, the sum is cut at the seams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from seqmix_ir.graph import Op, Value
from seqmix_ir.passes.group_index import At, Axis, Index, of_axis
from seqmix_triton.codegen.expressions import TYPES, carried, neutral, reduction
from seqmix_triton.codegen.lowering import Lowering, product_of
from seqmix_triton.codegen.scan_plan import ScanPlan
from seqmix_triton.codegen.scan_reads import (
    inner_axis,
    pieces,
    product_at,
    reduced_axes,
    reduction_at,
)
from seqmix_triton.codegen.tiles import Tile, TileAxis, aligned, joint_axes

__all__ = ["Sums"]

_JOINED = {
    "sum": "{} + {}",
    "mean": "{} + {}",
    "max": "tl.maximum({}, {})",
    "min": "tl.minimum({}, {})",
    "any": "{} | {}",
    "all": "{} & {}",
}


class Sums(Lowering):
    """What a loop adds up; its subclass says where values lie."""

    _plan: ScanPlan
    _carries: dict[Value, int]
    _tiles: dict[Axis, TileAxis]
    _wide = 0
    _narrow: str | None = None

    def reduced(self, op: Op, at: At) -> Tile:
        if op.name == "reduce":
            return self._reduce(op, at)
        return self._product(op, at)

    def _product(self, op: Op, at: At) -> Tile:
        x = op.operands[0]
        size = 1 if x is None else x.type.shape[-1]
        whole = inner_axis(at, size)
        left, right = product_at(op, at, of_axis(whole))
        terms = []
        for along in pieces(self.makers, self._carries, whole, at, [left, right]):
            left, right = product_at(op, at, along)
            axis = along.terms[0][0] if along.terms else None
            terms.append(self._term(op, left, right, axis))
        bias = op.operands[2] if op.name == "linear" else None
        if bias is not None:
            terms.append(self.value(bias, at[-1:]))
        axes = joint_axes(terms)
        text = " + ".join(aligned(term, axes) for term in terms)
        return self.named(op.name, text, axes, self.section(op.results[0]), op)

    def _term(
        self,
        op: Op,
        left: tuple[Value, At],
        right: tuple[Value, At],
        axis: object,
    ) -> Tile:
        """The part of a product that runs over one axis of the sum."""
        x, y = self.value(*left), self.value(*right)
        lines = self.section(op.results[0])
        if not isinstance(axis, Axis):
            axes = joint_axes([x, y])
            return self.named("term", f"{aligned(x, axes)} * {aligned(y, axes)}", axes, lines)
        along = self.axis_tile(axis).axes[0]
        wide = op.defn.attributes()["accumulate"] == "f64"
        if not wide and (made := self._dot(left, right, x, y, along)) is not None:
            text, axes = made
            return self.named("term", text, axes, lines)
        axes = joint_axes([x, y, Tile("", (along,))])
        to = ".to(tl.float64)" if wide and carried(op.results[0].type.dtype) != "f64" else ""
        text = f"{aligned(x, axes)}{to} * {aligned(y, axes)}{to}"
        if along.mask or along not in joint_axes([x, y]):
            inside = aligned(Tile(f"({along.name} < {axis.size})", (along,)), axes)
            text = f"tl.where({inside}, {text}, 0.0)"
        self._widen(axes)
        text = f"tl.sum({text}, {axes.index(along)})" + (f".to({TYPES['f32']})" if to else "")
        return self.named("term", text, tuple(a for a in axes if a is not along), lines)

    def _dot(
        self,
        left: tuple[Value, At],
        right: tuple[Value, At],
        x: Tile,
        y: Tile,
        along: TileAxis,
    ) -> tuple[str, tuple[TileAxis, ...]] | None:
        """The expression by matrix instructions; None where the tiles are no matrices for them."""
        outer = [a for a in (*x.axes, *y.axes) if a is not along]
        fits = len(x.axes) == len(y.axes) == 2 and along in x.axes and along in y.axes
        if not fits or len(set(outer)) != 2 or any(a.length < 16 for a in (*outer, along)):
            return None
        dtype = left[0].type.dtype
        if dtype == "f64":
            return None
        sides = []
        for (value, _), tile, axes in ((left, x, (outer[0], along)), (right, y, (along, outer[1]))):
            text = aligned(tile, axes)
            if along.mask:
                inside = aligned(Tile(f"({along.name} < {along.size})", (along,)), axes)
                text = f"tl.where({inside}, {text}, 0.0)"
            if carried(dtype) != dtype:
                self._narrow = dtype
                text = f"({text}).to(DOT)"
                section = self.section(value)
                text = self.named("operand", text, axes, section).text
            sides.append(text)
        text = f"tl.dot({sides[0]}, {sides[1]}, input_precision=PRECISION)"
        return text, (outer[0], outer[1])

    def _reduce(self, op: Op, at: At) -> Tile:
        along = reduced_axes(op, at)
        axes = [(n, axis) for n, index in along.items() if (axis := index.axis()) is not None]
        parts: list[Mapping[int, Index]] = [along]
        if len(axes) == 1:
            number, axis = axes[0]
            whole = reduction_at(op, at, along)
            cut = pieces(self.makers, self._carries, axis, at, [whole])
            parts = [{**along, number: part} for part in cut]
        (x,) = op.values
        total = str(product_of([x.type.shape[number] for number in along]))
        tiles = [self._reduced_part(op, at, part) for part in parts]
        joint = joint_axes(tiles)
        kind = op.defn.attributes()["kind"]
        text = aligned(tiles[0], joint)
        for tile in tiles[1:]:
            text = _JOINED[kind].format(text, aligned(tile, joint))
        if kind == "mean":
            text = f"({text}) / {total}"
        if text == tiles[0].text:
            return tiles[0]
        return self.named(f"row_{kind}", text, joint, self.section(op.results[0]), op)

    def _reduced_part(self, op: Op, at: At, along: Mapping[int, Index]) -> Tile:
        """A reduction over axes, or parts of them; a mean is not divided yet."""
        tile = self.value(*reduction_at(op, at, along))
        for index in along.values():
            axis = index.terms[0][0] if index.terms else None
            if not isinstance(axis, Axis):
                continue
            own = self.axis_tile(axis).axes[0]
            joint = joint_axes([tile, Tile("", (own,))])
            text = aligned(tile, joint)
            if own.mask or own not in tile.axes:
                inside = aligned(Tile(f"({own.name} < {axis.size})", (own,)), joint)
                text = f"tl.where({inside}, {text}, {neutral(op)})"
            made = reduction(op, text, joint.index(own), "1")
            left = tuple(a for a in joint if a is not own)
            kind = op.defn.attributes()["kind"]
            tile = self.named(f"part_{kind}", made, left, self.section(op.results[0]), op)
        return tile

    def _widen(self, axes: Sequence[TileAxis]) -> None:
        """Remember the widest tile of a row; what rows share is no part of it."""
        tiled = self._plan.tiled
        if tiled is None or self._tiles[tiled] in axes:
            self._wide = max(self._wide, math.prod(_own(axis) for axis in axes))


def _own(axis: TileAxis) -> int:
    """What an axis adds to the size of a tile: 1 for rows, whose number is chosen later."""
    return axis.length if axis.size else 1
