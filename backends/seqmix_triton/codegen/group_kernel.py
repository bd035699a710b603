"""Runs a group: its source is written once, and a launch needs sizes and blocks only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir.dims import Size
from seqmix_triton.codegen.group_source import BLOCK, GroupSource
from seqmix_triton.codegen.sources import imported
from seqmix_triton.kernel import device_of, interpreted, power_of_two

__all__ = ["LONGEST_ROW", "GroupKernel", "Launch"]

LONGEST_ROW = 16384
"""Longer rows do not fit a program that must see all of one."""

_TILE = 2048
_TILE_INTERPRETED = 1 << 15
_FAR = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """The grid of a call and its constants."""

    grid: tuple[int, ...]
    constants: dict[str, Any]
    warps: int


@dataclass
class GroupKernel:
    """One generated kernel; ``tile`` is the number of elements that a program takes."""

    source: GroupSource
    tile: int = 0

    @cached_property
    def function(self) -> Any:
        """The Triton function, imported from its file."""
        return imported(self.source.name, self.source.text)

    def fits(self, size: Callable[[Size], int]) -> bool:
        """Whether rows are short enough to be seen whole, where they must be."""
        return all(size(c.size) <= LONGEST_ROW for c in self.source.columns if c.whole)

    def plan(self, size: Callable[[Size], int], far: bool, hip: bool = False) -> Launch:
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

    def __call__(
        self, device: torch.device, size: Callable[[Size], int], *operands: Tensor
    ) -> tuple[Tensor, ...]:
        """The results on the device; operands that are not contiguous are copied."""
        given = [x.contiguous() for x in operands]
        shapes = [tuple(size(n) for n in t.shape) for t in self.source.results]
        results = [
            torch.empty(shape, dtype=torch_dtype(t.dtype), device=device)
            for shape, t in zip(shapes, self.source.results, strict=True)
        ]
        tensors = [*given, *results]
        launch = self.plan(size, max(t.numel() for t in tensors) > _FAR)
        if math.prod(launch.grid):
            sizes = [size(n) for n in self.source.sizes.values()]
            with device_of(dict(zip(self.source.pointers, tensors, strict=True))):
                self.function[launch.grid](
                    *tensors, *sizes, **launch.constants, num_warps=launch.warps
                )
        return tuple(results)
