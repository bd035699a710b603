"""Selective S4: a state space that sees the tokens that a learned mask lets pass.

Sizes: B batch, S sequence, D width, N complex modes (half of ``state_size``).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from seqmix.branches import linear
from seqmix.context import Context
from seqmix.state import State
from seqmix_gated_conv.s4d import S4D, S4DConfig

__all__ = ["SelectiveS4", "SelectiveS4Config"]


class SelectiveS4Config(S4DConfig):
    """Options of :class:`SelectiveS4`."""

    mask: Literal["soft", "hard"] = "soft"
    """Tokens are weighted by their score, or pass when it is above 1/2 and are dropped else."""


class SelectiveS4(S4D):
    """``y = GLU(W gelu(k * (m u) + D m u))``, ``m_t = sigmoid(w . u_t + b)`` (Wang et al. 2023).

    A mask per token in front of S4's long convolution, the state space that of S4D. In the paper
    another network, updated by momentum, scores whole images; here a token is scored by itself,
    which is causal and costs nothing. A hard mask is 0 or 1; while the model is in training
    mode its gradient is that of the score (straight through), else it has none.
    """

    Config = SelectiveS4Config

    def __init__(self, config: SelectiveS4Config, width: int) -> None:
        """ConfigError when ``state_size`` is odd. A fresh hard mask lets about half pass."""
        score = linear(width, 1, True)
        super().__init__(config, width)
        self.hard = config.mask == "hard"
        self.score = score

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        return super().forward(x * self.mask(x), state, ctx)

    def mask(self, x: Tensor) -> Tensor:
        """The weight of each token, ``[B, S, 1]``."""
        score = torch.sigmoid(self.score(x))
        if not self.hard:
            return score
        passed = (score > 0.5).to(score.dtype)
        return passed + (score - score.detach()) if self.training else passed

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both masks, both discretizations."""
        return [
            {"state_size": 6},
            {"state_size": 4, "mask": "hard", "discretization": "bilinear", "output": "linear"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The scores, the recurrence and the projection; no transform is counted."""
        scores = 2 * batch_size * seq_len * self.score.weight.numel()
        return scores + super().flops(batch_size, seq_len)
