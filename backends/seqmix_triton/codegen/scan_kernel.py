"""Runs a scan as one kernel."""

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
from seqmix_triton.codegen.group_kernel import Launch
from seqmix_triton.codegen.scan_source import ROWS_OF_PRODUCTS, ScanSource
from seqmix_triton.codegen.sources import imported
from seqmix_triton.kernel import device_of, interpreted, power_of_two, precision_of

__all__ = ["ScanKernel"]

_TILE = 256
_TILE_INTERPRETED = 1 << 12
_FAR = 2**31 - 1
_TYPES = {"f16": tl.float16, "bf16": tl.bfloat16}


def _precision(hip: bool) -> str:
    """How float32 products are computed in a loop.

    Exact products of float32 need more registers than there are where matrix instructions know
    TF32 alone; there a product is three of those, which is as good as float32.
    """
    known = precision_of(torch.float32)
    return "tf32x3" if known == "ieee" and not hip else known


@dataclass
class ScanKernel:
    """One generated loop; ``rows`` is how many places of the tiled axis a program takes."""

    source: ScanSource
    rows: int = 0

    @cached_property
    def function(self) -> Any:
        """The Triton function, imported from its file."""
        return imported(self.source.name, self.source.text)

    def plan(
        self, size: Callable[[Size], int], far: bool, hip: bool = torch.version.hip is not None
    ) -> Launch:
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
            "PRECISION": _precision(hip),
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

    def __call__(
        self, device: torch.device, size: Callable[[Size], int], *operands: Tensor
    ) -> tuple[Tensor, ...]:
        """The last carries and the outputs."""
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
