"""Softmax attention: grouped keys, a sliding window, normalized queries, any position encoding.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, K head size, P past slots,
W window.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from seqmix.attention_heads import AttentionHeads, HeadsConfig
from seqmix.branches import mask_padding
from seqmix.context import Context, valid_last
from seqmix.state import State, StateSpec

__all__ = ["Attention", "AttentionConfig"]


class AttentionConfig(HeadsConfig):
    """Options of :class:`Attention`."""

    window: PositiveInt | None = None
    """A token sees itself and the ``window - 1`` tokens before it; None for all."""


class Attention(AttentionHeads):
    """Causal softmax attention over everything before, or over the last W tokens.

    Without a window the state grows by one slot per token, padding included: a slot of padding has
    key position -1 and is never seen. With one it holds the last W - 1 real tokens, right-aligned.
    """

    Config = AttentionConfig

    def __init__(self, config: AttentionConfig, width: int) -> None:
        """Four projections, and two norms when asked for; see :class:`AttentionConfig`."""
        super().__init__(config, width)
        self.config = config
        self.window = config.window or 0

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Attend from the new tokens to the state and to themselves, and append them to it."""
        query = ctx.rotate(self.queries(x), "query")
        memory = self.remember(x, state, ctx)
        y = self.attend(query, ctx.positions, memory, ctx)
        if self.output.bias is not None:
            y = mask_padding(y, ctx)
        return y, self._evict(memory, x.shape[1]) if self.window else memory

    def state_spec(self) -> dict[str, StateSpec]:
        """Keys, values and their positions; ``window - 1`` slots when there is a window."""
        return self.cache_spec(self.window - 1 if self.window else "P")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Grouped keys, a window, biases, norms; head counts that are no powers of two."""
        return [
            {"heads": 3, "head_dim": 10, "kv_heads": 1},
            {"heads": 6, "head_dim": 7, "kv_heads": 3, "window": 5, "qk_norm": True},
            {"heads": 2, "head_dim": 8, "bias": True, "output_bias": True, "window": 1},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Four projections per token, and two products of size K per visible pair and head."""
        projections = self.projection_flops()
        near = min(self.window or seq_len, seq_len)
        pairs = near * (near + 1) // 2 + (seq_len - near) * near
        return 2 * batch_size * (seq_len * projections + 2 * pairs * self.heads * self.head_dim)

    def _evict(self, memory: State, new: int) -> State:
        """The last W - 1 real tokens of ``memory``; padding evicts nothing and leaves no trace."""
        # A row with fewer is filled up in front with slots of padding.
        order, _ = valid_last(memory["key_positions"] >= 0)
        kept = order.narrow(1, new, self.window - 1)
        positions = torch.gather(memory["key_positions"], 1, kept)
        filled = (positions >= 0)[:, None, :, None]
        after: State = {"key_positions": positions}
        for name in ("key", "value"):
            slots = memory[name]
            index = kept[:, None, :, None].expand(-1, slots.shape[1], -1, slots.shape[3])
            picked = torch.gather(slots, 2, index)
            after[name] = torch.where(filled, picked, torch.zeros_like(picked))
        return after
