"""S4D: one diagonal state space per channel, and a projection that mixes the channels.

Sizes: B batch, S sequence, D width, N complex modes (half of ``state_size``).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.state_space import DiagonalStateSpace, StateSpaceConfig

__all__ = ["S4D", "S4DConfig", "StateSpaceHead"]


class S4DConfig(StateSpaceConfig):
    """Options of :class:`S4D`; the defaults are the paper's."""

    activation: Literal["gelu", "none"] = "gelu"
    output: Literal["glu", "linear"] = "glu"
    """The projection behind: to twice the width with a gate, or to the width."""


class StateSpaceHead(nn.Module):
    """What stands behind the state spaces: activation and projection."""

    def __init__(self, config: S4DConfig, width: int) -> None:
        """Weights as torch draws them for a projection."""
        super().__init__()
        self.activation = config.activation
        self.gated = config.output == "glu"
        self.projection = nn.Linear(width, width * (1 + self.gated))

    def forward(self, y: Tensor, ctx: Context) -> Tensor:
        """Map ``y [B, S, D]`` to the same shape, 0 at padding."""
        y = self.projection(F.gelu(y) if self.activation == "gelu" else y)
        return mask_padding(F.glu(y, dim=-1) if self.gated else y, ctx)

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The projection."""
        return 2 * batch_size * seq_len * self.projection.weight.numel()


class S4D(SequenceMixer):
    """``y = GLU(W gelu(k * u + D u))`` with k from a diagonal state space (Gu et al. 2022).

    ``k[t] = 2 Re(sum_n C_n b_n a_n^t)`` per channel; see :class:`DiagonalStateSpace`. Training
    takes chunks of tokens as matrix products, so that time and memory are linear in S; decoding is
    the recurrence, N complex numbers per channel. There is no longest sequence.
    """

    Config = S4DConfig

    def __init__(self, config: S4DConfig, width: int) -> None:
        """ConfigError when ``state_size`` is odd."""
        super().__init__()
        self.space = DiagonalStateSpace(width, config)
        self.skip = nn.Parameter(torch.randn(width))
        self.head = StateSpaceHead(config, width)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        y, after = self.space(x.unsqueeze(2), state["ssm"], ctx)
        return self.head(y.squeeze(2) + self.skip * x, ctx), {"ssm": after}

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, D, 1, N, 2]`` in float32."""
        return {"ssm": self.space.spec()}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both discretizations and initializations, with and without gate, 3 modes and 4."""
        return [
            {"state_size": 6},
            {
                "state_size": 8,
                "discretization": "bilinear",
                "initialization": "inv",
                "activation": "none",
                "output": "linear",
            },
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The recurrence (a chunk spends as much) and the projection; no transform is counted."""
        return self.space.flops(batch_size, seq_len) + self.head.flops(batch_size, seq_len)
