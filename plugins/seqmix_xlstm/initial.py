"""Fresh weights as the xLSTM papers draw them; each is applied to one tensor by its mixer.

D width of a model or, for the forget gates of sLSTM, of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["linspace_", "power_law_", "small_init_", "small_std", "wang_init_", "wang_std"]


def small_std(width: int) -> float:
    """``sqrt(2 / (5 D))``: the small initialization (Nguyen and Salazar 2019)."""
    return math.sqrt(2 / (5 * width))


def wang_std(width: int, blocks: int) -> float:
    """``2 / (blocks sqrt(D))``: of what is added to the residual stream (GPT-J's)."""
    return 2 / (blocks * math.sqrt(width))


def small_init_(weight: Tensor, width: int) -> None:
    """Draw from ``N(0, sqrt(2 / (5 D)))``."""
    nn.init.normal_(weight, std=small_std(width))


def wang_init_(weight: Tensor, width: int, blocks: int) -> None:
    """Draw from ``N(0, 2 / (blocks sqrt(D)))``."""
    nn.init.normal_(weight, std=wang_std(width, blocks))


def linspace_(bias: Tensor, start: float = 3.0, stop: float = 6.0) -> None:
    """Forget gates of mLSTM: evenly from ``start`` in the first head to ``stop`` in the last."""
    with torch.no_grad():
        bias.copy_(torch.linspace(start, stop, bias.numel()))


def power_law_(bias: Tensor, block: int, blocks: int) -> None:
    """Forget gates of sLSTM, ``bias [..., D]``, from 5 down to -7 along D, for each head alike.

    ``b_j = 5 - 12 (j / (D - 1))^(0.3 + 1.3 block / (blocks - 1))``: early blocks spread to short
    memories quickly, late ones keep long ones. A head of one channel has 5, and a block that is
    the only one counts as the first; the formula itself is 0 / 0 there.
    """
    size = bias.shape[-1]
    depth = block / (blocks - 1) if blocks > 1 else 0.0
    places = torch.arange(size, dtype=torch.float64) / max(size - 1, 1)
    with torch.no_grad():
        bias.copy_(5.0 - 12.0 * places ** (0.3 + 1.3 * depth))
