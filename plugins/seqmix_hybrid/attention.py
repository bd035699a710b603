"""Softmax attention: grouped keys, a sliding window, normalized queries, any position encoding.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, K head size, P past slots,
W window.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.branches import RMSNorm, linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context, valid_last
from seqmix.mixer import SequenceMixer
from seqmix.ops.attention import attention
from seqmix.state import State, StateSpec

__all__ = ["Attention", "AttentionConfig"]


class AttentionConfig(Strict):
    """Options of :class:`Attention`. ``kv_heads`` defaults to ``heads``, scale to 1/sqrt(K).

    ``head_dim`` need not be D / H. ``bias`` is that of queries, keys and values.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    kv_heads: PositiveInt | None = None
    window: PositiveInt | None = None
    """A token sees itself and the ``window - 1`` tokens before it; None for all."""
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMS normalization of each query and key over K, before they are rotated (Qwen3)."""
    qk_norm_eps: float = Field(default=1e-6, gt=0)
    scale: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _groups_divide(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}")
        return self


class Attention(SequenceMixer):
    """Causal softmax attention over everything before, or over the last W tokens.

    Without a window the state grows by one slot per token, padding included: a slot of padding has
    key position -1 and is never seen. With one it holds the last W - 1 real tokens, right-aligned.
    """

    Config = AttentionConfig

    def __init__(self, config: AttentionConfig, width: int) -> None:
        """Four projections, and two norms when asked for; see :class:`AttentionConfig`."""
        super().__init__()
        self.config = config
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_dim = config.head_dim
        self.window = config.window or 0
        self.query = linear(width, self.heads * self.head_dim, config.bias)
        self.key = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.value = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.output = linear(self.heads * self.head_dim, width, config.output_bias)
        self.q_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Attend from the new tokens to the state and to themselves, and append them to it."""
        query = self._split(self.query(x), self.heads)
        if self.q_norm is not None:
            query = self.q_norm(query)
        query = ctx.rotate(query, "query")
        memory = {
            "key": torch.cat([state["key"], self._new_keys(x, ctx)], dim=2),
            "value": torch.cat([state["value"], self._split(self.value(x), self.kv_heads)], dim=2),
            "key_positions": torch.cat([state["key_positions"], ctx.positions], dim=1),
        }
        y = self._attend(query, memory, ctx)
        y = self.output(y.transpose(1, 2).flatten(2))
        if self.output.bias is not None:
            y = mask_padding(y, ctx)
        return y, self._evict(memory, x.shape[1]) if self.window else memory

    def state_spec(self) -> dict[str, StateSpec]:
        """Keys, values and their positions; ``window - 1`` slots when there is a window."""
        slots: int | str = self.window - 1 if self.window else "P"
        cache = ("B", self.kv_heads, slots, self.head_dim)
        return {
            "key": StateSpec(cache, role="key"),
            "value": StateSpec(cache, role="value"),
            "key_positions": StateSpec(("B", slots), "i64", role="key_positions", fill=-1),
        }

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
        projections = sum(p.weight.numel() for p in (self.query, self.key, self.value, self.output))
        near = min(self.window or seq_len, seq_len)
        pairs = near * (near + 1) // 2 + (seq_len - near) * near
        return 2 * batch_size * (seq_len * projections + 2 * pairs * self.heads * self.head_dim)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """``[B, S, heads * K] -> [B, heads, S, K]``."""
        return x.reshape(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _new_keys(self, x: Tensor, ctx: Context) -> Tensor:
        """The keys of the new tokens as the state holds them."""
        key = self._split(self.key(x), self.kv_heads)
        if self.k_norm is not None:
            key = self.k_norm(key)
        if ctx.encoding is not None and not ctx.encoding.caches_rotated_keys:
            return key
        return ctx.rotate(key, "key")

    def _attend(self, query: Tensor, memory: State, ctx: Context) -> Tensor:
        """The attention op with what the position encoding adds to it."""
        key, key_positions = memory["key"], memory["key_positions"]
        scale, bias = self.config.scale or 0.0, None
        if (encoding := ctx.encoding) is not None:
            if not encoding.caches_rotated_keys:
                key = encoding.rotate(key, key_positions, ctx.context_length, "key")
            bias = encoding.bias(ctx.positions, key_positions)
            factor = encoding.logit_scale(ctx.context_length)
            if isinstance(factor, Tensor):
                query = query * factor.reshape(-1, 1, 1, 1).to(query.dtype)
            elif factor != 1.0:
                scale = factor * (scale or self.head_dim**-0.5)
        return attention(
            query,
            key,
            memory["value"],
            ctx.positions,
            key_positions,
            bias,
            scale=scale,
            window=self.window,
        )

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
