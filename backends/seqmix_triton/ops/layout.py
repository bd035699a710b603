"""How tensors must lie in memory for the kernels."""

from __future__ import annotations

from torch import Tensor

__all__ = ["rows_together"]


def rows_together(x: Tensor) -> Tensor:
    """``x`` with its last axis dense; the others may have any strides, as after a transpose."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
