"""Fresh parameters of RWKV-4, which depend on the channel and on the depth of the block.

D channels; a block is one of several, counted from 0.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.config import Strict

__all__ = ["Depth", "decay_speed_", "mix_ramp_", "orthogonal_", "zigzag_"]


class Depth(Strict):
    """Where a block stands: fresh parameters depend on it, and nothing else does."""

    block: NonNegativeInt = 0
    blocks: PositiveInt = 1
    """This block and how many there are."""

    @model_validator(mode="after")
    def _block_exists(self) -> Self:
        if self.block >= self.blocks:
            raise ValueError(f"block = {self.block} must be below blocks = {self.blocks}")
        return self

    @property
    def risen(self) -> float:
        """From 0 in the first block to 1 in the last; 0 when there is but one."""
        return self.block / (self.blocks - 1) if self.blocks > 1 else 0.0

    @property
    def remaining(self) -> float:
        """From 1 in the first block to almost 0 in the last."""
        return 1.0 - self.block / self.blocks


def mix_ramp_(mix: Tensor, exponent: float, added: float = 0.0) -> None:
    """``mix_i = (i / D)^exponent + added``: late channels look at the token itself."""
    size = mix.shape[-1]
    places = torch.arange(size, dtype=torch.float64) / size
    with torch.no_grad():
        mix.copy_(places**exponent + added)


def decay_speed_(decay: Tensor, depth: Depth) -> None:
    """``-5 + 8 (i / (D - 1))^(0.7 + 1.3 risen)``: a step keeps ``exp(-exp(decay))`` of the state.

    A single channel has -5.
    """
    size = decay.shape[-1]
    places = torch.arange(size, dtype=torch.float64) / max(size - 1, 1)
    with torch.no_grad():
        decay.copy_(-5.0 + 8.0 * places ** (0.7 + 1.3 * depth.risen))


def zigzag_(bonus: Tensor) -> None:
    """``log 0.3`` plus 0, 0.5, -0.5 in turn: neighbouring channels weigh a new token unlike."""
    turn = (torch.arange(bonus.shape[-1]) + 1) % 3 - 1
    with torch.no_grad():
        bonus.copy_(math.log(0.3) + 0.5 * turn)


def orthogonal_(layer: nn.Linear) -> None:
    """An orthogonal matrix, the larger the more it widens: gain ``sqrt(out / in)``, at least 1."""
    outputs, inputs = layer.weight.shape
    nn.init.orthogonal_(layer.weight, gain=math.sqrt(max(1.0, outputs / inputs)))
