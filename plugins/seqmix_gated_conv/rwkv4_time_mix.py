"""Time mixing of RWKV-4: a receptance that gates an average of all values before.

Sizes: B batch, S sequence, D model width, A inner width.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.context import Context
from seqmix.layers import raised, wide
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.rwkv4_initial import Depth, decay_speed_, mix_ramp_, orthogonal_, zigzag_
from seqmix_gated_conv.token_shift import blend, shift_tokens
from seqmix_gated_conv.wkv4 import NOTHING_YET, wkv4

__all__ = ["TimeMix", "TimeMixConfig"]


class TimeMixConfig(Depth):
    """Options of :class:`TimeMix`; ``inner`` is A, the width of keys and values, by default D."""

    inner: PositiveInt | None = None


class TimeMix(SequenceMixer):
    """``y = W_o (sigmoid(r) * wkv(k, v))`` (Peng et al. 2023, section 3.1), norm apart.

    r, k and v are projections of x mixed with the token before it, channel by channel:
    ``mix * x_t + (1 - mix) * x_{t-1}``. A sequence of any length is computed at once, by scans of
    depth log S; a single token costs the same at any place. The state is that token before,
    ``shift [B, D]``, and the cell of :func:`~seqmix_gated_conv.wkv4.wkv4`, ``[B, A]`` three times
    in float32. Parameters are called and shaped as in RWKV checkpoints, but for axes of size 1.
    """

    Config = TimeMixConfig

    def __init__(self, config: TimeMixConfig, width: int) -> None:
        """Four projections; fresh ones add nothing to the residual stream: W_o starts at 0."""
        super().__init__()
        inner = config.inner or width
        self.time_decay = nn.Parameter(torch.empty(inner))
        self.time_first = nn.Parameter(torch.empty(inner))
        self.time_mix_key = nn.Parameter(torch.empty(width))
        self.time_mix_value = nn.Parameter(torch.empty(width))
        self.time_mix_receptance = nn.Parameter(torch.empty(width))
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)
        self.receptance = nn.Linear(width, inner, bias=False)
        self.output = nn.Linear(inner, width, bias=False)
        self._initialize(config)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        valid = ctx.valid if ctx.may_be_padded else None
        before, shift = shift_tokens(x, state["shift"], valid)
        step = x - before
        k = wide(self.key(blend(before, step, self.time_mix_key)))
        v = wide(self.value(blend(before, step, self.time_mix_value)))
        gate = torch.sigmoid(self.receptance(blend(before, step, self.time_mix_receptance)))
        decay, bonus = -torch.exp(wide(self.time_decay)), wide(self.time_first)
        aa, bb, pp = (raised(state[key], x) for key in ("aa", "bb", "pp"))
        mixed, cell = wkv4(k, v, decay, bonus, (aa, bb, pp), valid)
        after = {
            key: t.to(state[key].dtype) for key, t in zip(("aa", "bb", "pp"), cell, strict=True)
        }
        y = self.output(gate * mixed.to(gate.dtype))
        return mask_padding(y, ctx), {"shift": shift, **after}

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, D]`` in the model's dtype, and ``[B, A]`` three times in float32."""
        inner, width = self.key.weight.shape
        return {
            "shift": StateSpec(("B", width), role="conv"),
            "aa": StateSpec(("B", inner), "f32", role="recurrent"),
            "bb": StateSpec(("B", inner), "f32", role="recurrent"),
            "pp": StateSpec(("B", inner), "f32", fill=NOTHING_YET),
        }

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The model's own width, and an odd inner one in the last of several blocks."""
        return [{}, {"inner": 11, "block": 2, "blocks": 3}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The four projections, as the RWKV paper counts."""
        layers = (self.key, self.value, self.receptance, self.output)
        return 2 * batch_size * seq_len * sum(layer.weight.numel() for layer in layers)

    def _initialize(self, depth: Depth) -> None:
        """RWKV-4's own: values are orthogonal; keys, receptance and output start at 0."""
        decay_speed_(self.time_decay, depth)
        zigzag_(self.time_first)
        mix_ramp_(self.time_mix_key, depth.remaining)
        mix_ramp_(self.time_mix_value, depth.remaining, 0.3 * depth.risen)
        mix_ramp_(self.time_mix_receptance, 0.5 * depth.remaining)
        orthogonal_(self.value)
        for layer in (self.key, self.receptance, self.output):
            nn.init.zeros_(layer.weight)
