"""What mixers are made of: block-diagonal projections, a short convolution, a norm per head.

Sizes: B batch, S sequence, D channels, H heads, V size of a head, W taps of the convolution.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.ops import causal_conv1d

__all__ = [
    "CausalConv",
    "HeadNorm",
    "HeadwiseLinear",
    "equal_parts",
    "raised",
    "split_heads",
    "wide",
]


def wide(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 when it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def raised(state: Tensor, x: Tensor) -> Tensor:
    """A float32 state in float64 when ``x`` is that: a cell is never narrower than its input."""
    return state.to(torch.promote_types(state.dtype, x.dtype))


def equal_parts(size: int, parts: int, what: str, name: str) -> int:
    """``size / parts``; ConfigError that calls them ``what`` and ``name`` when there is a rest."""
    if size < 1 or size % parts:
        raise ConfigError(
            f"{what} is {size}, which is no multiple of {name} = {parts}; change one of them"
        )
    return size // parts


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, S, H * V] -> [B, H, S, V]``."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


class HeadwiseLinear(nn.Module):
    """A block-diagonal projection: each of N groups of channels has its own square matrix."""

    def __init__(self, width: int, groups: int) -> None:
        """``weight [N, out, in]`` is uninitialized: the mixer knows how it wants it."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, width // groups, width // groups))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [B, S, N * in]`` to ``[B, S, N * out]``."""
        groups, _, size = self.weight.shape
        parts = x.reshape(*x.shape[:2], groups, size)
        return torch.einsum("bsni,noi->bsno", parts, self.weight).flatten(2)


class CausalConv(nn.Module):
    """A short depthwise causal convolution; its state is the tail ``[B, D, W-1]``."""

    def __init__(
        self, width: int, taps: int, *, activation: Literal["", "silu"] = "silu", bias: bool = True
    ) -> None:
        """Uniform weights within ``1 / sqrt(W)``, as torch draws them for a convolution."""
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(width, taps))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        bound = 1 / math.sqrt(taps)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, tail: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Map ``x [B, S, D]`` to the same shape, 0 at padding, and to the tail after it."""
        run = partial(causal_conv1d, activation=self.activation)
        if not ctx.may_be_padded:
            y, after = run(x.transpose(1, 2), self.weight, self.bias, tail)
            return y.transpose(1, 2), after
        # Padding moves out of the way: taps see the valid tokens alone, as if it were not there.
        joined = ctx.prepend(tail.transpose(1, 2), ctx.compact(x)).transpose(1, 2)
        kept = self.weight.shape[1] - 1
        before, tokens = joined[:, :, :kept], joined[:, :, kept:]
        y, after = run(tokens, self.weight, self.bias, before)
        return ctx.scatter_back(y.transpose(1, 2)), after


class HeadNorm(nn.Module):
    """Layer normalization of each head by itself, in float32; the paper's multi-head norm.

    The mean is subtracted; a weight per channel follows, no bias.
    """

    def __init__(self, width: int, heads: int, eps: float) -> None:
        """Start with a weight ``[H * V]`` of ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.heads = heads
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [B, S, H, V]`` to ``[B, S, H * V]`` in the dtype of the weight."""
        y = F.layer_norm(wide(x), (self.weight.shape[0] // self.heads,), eps=self.eps)
        return (y.flatten(2) * wide(self.weight)).to(self.weight.dtype)
