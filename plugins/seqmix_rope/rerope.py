"""ReRoPE: rotary attention with rectified relative positions (Su 2023, kexue.fm/archives/9708).

Sizes: B batch, S sequence, D model width, H heads, K head size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from seqmix.config import Kind
from seqmix.ops.attention_chunks import wide_dtype
from seqmix_rope.clipped import ClippedRule
from seqmix_rope.clipped_heads import ClippedHeads, ClippedHeadsConfig, rotation_of
from seqmix_rope.standing_in import clipped_kind, numbers_of

__all__ = ["ReRoPE", "ReRoPEConfig"]


class ReRoPEConfig(ClippedHeadsConfig):
    """Options of :class:`ReRoPE`; lengths in tokens.

    Distances from ``window`` on count as ``window``; with a ``leak`` k > 1, as one k-th of what
    they exceed it by more (Leaky ReRoPE). ``trained_length`` L multiplies the logits of a query at
    position t by ``max(1, ln(t + 1) / ln(L))``, as the author's code does; None for not.
    """

    window: PositiveInt
    leak: float | None = Field(default=None, gt=1)
    trained_length: int | None = Field(default=None, ge=2)


class ReRoPE(ClippedHeads):
    """Causal attention to everything, in which far keys are all equally far away.

    The logit of query t and key s is ``q_t^T R(f(t - s)) k_s / sqrt(K)`` with the rotation R of
    RoPE, and ``f(d) = d`` for d < w, else ``w``; leaky ``w + (d - w) / k``. It is RoPE exactly up
    to w tokens, and no distance is longer than trained ones if w is below the trained length.
    """

    Config = ReRoPEConfig

    def __init__(self, config: ReRoPEConfig, width: int) -> None:
        """Four projections, and two norms when asked for."""
        super().__init__(config, width)
        self.log_length = math.log(config.trained_length) if config.trained_length else 0.0
        self.rule = ClippedRule(
            rotation_of(config),
            clip=config.window,
            slope=1 / config.leak if config.leak else 0.0,
            scale=config.scale or 0.0,
            interleaved=config.layout == "interleaved",
        )

    def scaled(self, query: Tensor, positions: Tensor) -> Tensor:
        """The growth of the logits with the length, where it is asked for."""
        if not self.log_length:
            return query
        growth = torch.log((positions + 1).clamp(min=1).to(torch.float64)) / self.log_length
        growth = growth.clamp(min=1.0).to(wide_dtype(query))
        return (query * growth[:, None, :, None]).to(query.dtype)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Plain and leaky, grouped keys, both layouts; windows that short sequences leave."""
        shared = {"theta": 100.0, "heads": 3}
        return [
            {**shared, "head_dim": 6, "kv_heads": 1, "window": 3},
            {**shared, "head_dim": 7, "window": 4, "leak": 3.0, "rotary_dim": 4, "bias": True,
             "layout": "interleaved", "trained_length": 5},
            {**shared, "head_dim": 8, "window": 1, "qk_norm": True, "output_bias": True},
        ]  # fmt: skip

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Four projections; per visible pair and head one product for each rotation, and values."""
        pairs = seq_len * (seq_len + 1) // 2
        attended = pairs * self.heads * self.head_dim
        return 2 * batch_size * (seq_len * self.projection_flops() + 2 * attended)

    @classmethod
    def instead_of_attention(
        cls, attention: Kind, rotation: Kind, context_length: int, value: str
    ) -> Kind:
        """ReRoPE for an attention layer of a model with RoPE; ``value`` is "", "W" or "W:k".

        The window defaults to half of the model's context.
        """
        window, leak = numbers_of("rerope", value, ("W", "K"))
        options: dict[str, Any] = {"window": window or max(1, context_length // 2)}
        if leak is not None:
            options["leak"] = float(leak)
        return clipped_kind("rerope", attention, rotation, options)
