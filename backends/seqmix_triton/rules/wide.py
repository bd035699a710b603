"""The dtype in which an op accumulates."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["widened"]


def widened(x: Tensor, accumulate: str) -> Tensor:
    """``x`` in the dtype it is accumulated in: float32 at least, float64 where an op asks."""
    if not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.float64 if accumulate == "f64" else torch.float32)
