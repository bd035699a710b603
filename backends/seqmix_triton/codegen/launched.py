"""What every generated kernel does when it is called: its source is written once by then."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir.dims import Size
from seqmix_ir.types import TensorType
from seqmix_triton.codegen.sources import imported
from seqmix_triton.kernel import device_of

__all__ = ["GeneratedKernel", "Launch", "Source"]

_FAR = 2**31 - 1


class Source(Protocol):
    """The text of a kernel, and what its arguments are: pointers, then sizes."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def pointers(self) -> tuple[str, ...]: ...
    @property
    def operands(self) -> Sequence[TensorType]: ...
    @property
    def results(self) -> Sequence[TensorType]: ...
    @property
    def sizes(self) -> Mapping[str, Size]: ...


@dataclass(frozen=True)
class Launch:
    """The grid of a call and its constants."""

    grid: tuple[int, ...]
    constants: dict[str, Any]
    warps: int


class GeneratedKernel(ABC):
    """A kernel that was written for some ops; a launch needs sizes and blocks only."""

    source: Source

    @cached_property
    def function(self) -> Any:
        """The Triton function, imported from its file."""
        return imported(self.source.name, self.source.text)

    @abstractmethod
    def plan(self, size: Callable[[Size], int], far: bool, hip: bool | None = None) -> Launch:
        """How a call with these sizes is cut, for a HIP device or another (None: torch's).

        ``far`` is whether an element lies beyond 2^31.
        """

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
