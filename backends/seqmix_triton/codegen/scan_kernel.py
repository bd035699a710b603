"""How a scan is launched as one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton.language as tl

from seqmix_ir.dims import Size
from seqmix_triton.codegen.launched import GeneratedKernel, Launch
from seqmix_triton.codegen.scan_source import ROWS_OF_PRODUCTS, ScanSource
from seqmix_triton.kernel import interpreted, power_of_two, precision_of

__all__ = ["ScanKernel"]

_TILE = 256
_TILE_INTERPRETED = 1 << 12
_TYPES = {"f16": tl.float16, "bf16": tl.bfloat16}


def _precision(hip: bool) -> str:
    """How float32 products are computed in a loop.

    Exact products of float32 need more registers than there are where matrix instructions know
    TF32 alone; there a product is three of those, which is as good as float32.
    """
    known = precision_of(torch.float32)
    return "tf32x3" if known == "ieee" and not hip else known


@dataclass
class ScanKernel(GeneratedKernel):
    """One generated loop; ``rows`` is how many places of the tiled axis a program takes."""

    source: ScanSource
    rows: int = 0

    def plan(self, size: Callable[[Size], int], far: bool, hip: bool | None = None) -> Launch:
        """How a call with these sizes is cut, for a HIP device or another."""
        source = self.source
        rows = self._rows(size)
        counts = [size(n) for n in source.parallel]
        if source.tiled is not None:
            counts[source.tiled] = -(-counts[source.tiled] // rows)
        narrow = None if interpreted() else _TYPES.get(source.narrow or "")
        constants = {
            "OFFSET": tl.int64 if far else tl.int32,
            "ROWS": rows,
            "DOT": narrow or tl.float32,
            "PRECISION": _precision(torch.version.hip is not None if hip is None else hip),
        }
        return Launch((math.prod(counts),), constants, self.warps(rows))

    def warps(self, rows: int) -> int:
        """Warps of a program: enough that registers hold the constants and the widest tile."""
        held = max(self.source.held, 4 * self.source.wide * rows)
        return 1 if held <= 2048 else 4 if held <= 1 << 15 else 8 if held <= 1 << 16 else 16

    def _rows(self, size: Callable[[Size], int]) -> int:
        source = self.source
        if source.tiled is None:
            return 1
        if source.shares:
            return self.rows or ROWS_OF_PRODUCTS
        room = _TILE_INTERPRETED if interpreted() else _TILE
        return self.rows or min(room, power_of_two(size(source.parallel[source.tiled])))
