"""Feature maps of linear attention: ``phi(q) . phi(k)`` stands for a similarity of q and k.

Sizes: B batch, H heads, S sequence, d size of a query or key, K size of its features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FEATURE_MAPS", "Elu", "FeatureMap", "Taylor"]


class Elu(nn.Module):
    """``elu(x) + 1``, positive everywhere (Katharopoulos et al. 2020, equation 7); K = d."""

    def __init__(self, size: int) -> None:
        """``size`` is d."""
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [B, H, S, d]`` to the same shape."""
        return F.elu(x) + 1


class Taylor(nn.Module):
    """``phi(q) . phi(k) = 1 + s + s^2 / 2`` with ``s = q . k / sqrt(d)``: exp(s) to second order.

    Based (Arora et al. 2024) has the features 1, ``x / d^(1/4)`` and all ``x_i x_j / sqrt(2 d)``.
    Here a pair of unlike i and j stands once, times sqrt(2), which gives the same similarity with
    K = ``1 + d + d (d + 1) / 2`` features instead of ``1 + d + d^2``, in this order. It is at least
    1/2, whatever s is.
    """

    left: Tensor
    left_bias: Tensor
    right: Tensor
    right_bias: Tensor

    def __init__(self, size: int) -> None:
        """``size`` is d."""
        super().__init__()
        self._d = size
        self._dtype = torch.float32
        for name, table in _pair_tables(size).items():
            self.register_buffer(name, table.to(self._dtype), persistent=False)
        self.size = self.left.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [B, H, S, d]`` to ``[B, H, S, K]``, in the dtype of x."""
        left = F.linear(x, self.left.to(x.dtype), self.left_bias.to(x.dtype))
        return left * F.linear(x, self.right.to(x.dtype), self.right_bias.to(x.dtype))

    def _apply(self, fn: Callable[[Tensor], Any], recurse: bool = True) -> Self:
        """Follow the model's conversion to or from float64; narrower types keep float32 tables."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        like = fn(torch.zeros((), dtype=self._dtype))
        self._dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        for name, table in _pair_tables(self._d).items():
            setattr(self, name, table.to(like.device, self._dtype))
        return self


def _pair_tables(size: int) -> dict[str, Tensor]:
    """Two affine maps whose product is all features: with x_0 = 1 each of them is some x_i x_j."""
    i, j = torch.triu_indices(size + 1, size + 1)
    scale = torch.where(i == j, 0.5, 1.0).to(torch.float64).sqrt() * size**-0.5
    scale = torch.where(i > 0, scale, size**-0.25)
    scale[0] = 1.0
    left = F.one_hot(i, size + 1) * scale.unsqueeze(1)
    right = F.one_hot(j, size + 1)
    return {
        "left": left[:, 1:].contiguous(),
        "left_bias": left[:, 0].contiguous(),
        "right": right[:, 1:].contiguous(),
        "right_bias": right[:, 0].contiguous(),
    }


FeatureMap: TypeAlias = Elu | Taylor

FEATURE_MAPS: dict[str, Callable[[int], FeatureMap]] = {"elu": Elu, "taylor": Taylor}
"""By the names that configurations use."""
