"""How a group is launched: in blocks of rows, or of parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import triton.language as tl

from seqmix_ir.dims import Size
from seqmix_triton.codegen.group_source import BLOCK, GroupSource
from seqmix_triton.codegen.launched import GeneratedKernel, Launch
from seqmix_triton.kernel import interpreted, power_of_two

__all__ = ["LONGEST_ROW", "GroupKernel"]

LONGEST_ROW = 16384
"""Longer rows do not fit a program that must see all of one."""

_TILE = 2048
_TILE_INTERPRETED = 1 << 15


@dataclass
class GroupKernel(GeneratedKernel):
    """One generated kernel; ``tile`` is the number of elements that a program takes."""

    source: GroupSource
    tile: int = 0

    def fits(self, size: Callable[[Size], int]) -> bool:
        """Whether rows are short enough to be seen whole, where they must be."""
        return all(size(c.size) <= LONGEST_ROW for c in self.source.columns if c.whole)

    def plan(self, size: Callable[[Size], int], far: bool, hip: bool | None = None) -> Launch:
        """How a call with these sizes is cut; the same on all devices."""
        blocks = {}
        parts = 1
        for columns in self.source.columns:
            length = size(columns.size)
            block = power_of_two(length)
            if not columns.whole:
                block = min(block, BLOCK)
                parts = -(-length // block)
            blocks[columns.block] = block
        widest = max(blocks.values(), default=1)
        rows = math.prod(size(n) for n in self.source.lead)
        room = self.tile or (_TILE_INTERPRETED if interpreted() else _TILE)
        each = max(1, min(room // widest, power_of_two(rows)))
        offset = tl.int64 if far else tl.int32
        warps = 4 if widest * each <= 4096 else 8 if widest * each <= 8192 else 16
        constants = {"OFFSET": offset, "ROWS": each, **blocks}
        return Launch((-(-rows // each), parts), constants, warps)
