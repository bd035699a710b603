"""Every kernel of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import seqmix_triton.kernels
from seqmix_triton.kernel import Kernel

__all__ = ["all_kernels"]


def all_kernels() -> Iterator[Kernel]:
    """The descriptions in ``seqmix_triton.kernels``, module by module."""
    for info in pkgutil.iter_modules(seqmix_triton.kernels.__path__):
        module = importlib.import_module(f"seqmix_triton.kernels.{info.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Kernel))
