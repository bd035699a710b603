"""Channel mixing of RWKV-4: a gated feed-forward branch that also sees the token before.

Sizes: B batch, S sequence, D model width, N hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.rwkv4_initial import Depth, mix_ramp_, orthogonal_
from seqmix_gated_conv.squared_relu import squared_relu
from seqmix_gated_conv.token_shift import blend, shift_tokens

__all__ = ["ChannelMix", "ChannelMixConfig"]


class ChannelMixConfig(Depth):
    """Options of :class:`ChannelMix`; ``hidden`` is N, by default 4 D."""

    hidden: PositiveInt | None = None


class ChannelMix(SequenceMixer):
    """``y = sigmoid(r) * W_v relu(k)^2`` (Peng et al. 2023, section 3.1), norm apart.

    r and k are projections of x mixed with the token before it, channel by channel. That token is
    the state, ``shift [B, D]``. Parameters are called and shaped as in RWKV checkpoints, but for
    axes of size 1.
    """

    Config = ChannelMixConfig

    def __init__(self, config: ChannelMixConfig, width: int) -> None:
        """Three projections; fresh ones add nothing to the residual stream: W_v starts at 0."""
        super().__init__()
        hidden = config.hidden or 4 * width
        self.time_mix_key = nn.Parameter(torch.empty(width))
        self.time_mix_receptance = nn.Parameter(torch.empty(width))
        self.key = nn.Linear(width, hidden, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)
        self._initialize(config)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]`` token by token, but for what each sees of the one before."""
        valid = ctx.valid if ctx.may_be_padded else None
        before, shift = shift_tokens(x, state["shift"], valid)
        step = x - before
        active = squared_relu(self.key(blend(before, step, self.time_mix_key)))
        gate = torch.sigmoid(self.receptance(blend(before, step, self.time_mix_receptance)))
        y = gate * self.value(active)
        return mask_padding(y, ctx), {"shift": shift}

    def state_spec(self) -> dict[str, StateSpec]:
        """The token before, ``[B, D]``."""
        return {"shift": StateSpec(("B", self.key.weight.shape[1]), role="conv")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The default hidden width, and an odd one in the last of several blocks."""
        return [{}, {"hidden": 7, "block": 2, "blocks": 3}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The three projections, as the RWKV paper counts."""
        layers = (self.key, self.receptance, self.value)
        return 2 * batch_size * seq_len * sum(layer.weight.numel() for layer in layers)

    def _initialize(self, depth: Depth) -> None:
        """RWKV-4's own: keys are orthogonal; receptance and values start at 0."""
        mix_ramp_(self.time_mix_key, depth.remaining)
        mix_ramp_(self.time_mix_receptance, depth.remaining)
        orthogonal_(self.key)
        for layer in (self.receptance, self.value):
            nn.init.zeros_(layer.weight)
