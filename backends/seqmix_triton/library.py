"""Every kernel of this package, and those of plugins."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import seqmix_triton.kernels
from seqmix_triton.kernel import Kernel
from seqmix_triton.lowering import plugin_kernels

__all__ = ["all_kernels"]


def all_kernels() -> Iterator[Kernel]:
    """The descriptions in ``seqmix_triton.kernels``, module by module; then those of plugins."""
    for info in pkgutil.iter_modules(seqmix_triton.kernels.__path__):
        module = importlib.import_module(f"seqmix_triton.kernels.{info.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Kernel))
    for plugin in plugin_kernels():
        yield from plugin.kernels
