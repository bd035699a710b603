"""What softmax attention is made of, whichever queries attend: projections, cache, the op.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, K head size, P past slots,
N queries.
"""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.branches import RMSNorm, linear
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.ops.attention import attention
from seqmix.state import State, StateSpec

__all__ = ["AttentionHeads", "HeadsConfig"]


class HeadsConfig(Strict):
    """Options of every attention mixer. ``kv_heads`` defaults to ``heads``, scale to 1/sqrt(K).

    ``head_dim`` need not be D / H. ``bias`` is that of queries, keys and values.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    kv_heads: PositiveInt | None = None
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


class AttentionHeads(SequenceMixer):
    """The projections of an attention mixer, its keys and values so far, and how it attends.

    A mixer decides in ``forward`` which rows ask, and what of its memory it keeps.
    """

    window: int = 0
    """A query sees itself and the ``window - 1`` tokens before it; 0 for all."""

    def __init__(self, config: HeadsConfig, width: int) -> None:
        """Four projections, and two norms when asked for; see :class:`HeadsConfig`."""
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_dim = config.head_dim
        self.scale = config.scale or 0.0
        self.query = linear(width, self.heads * self.head_dim, config.bias)
        self.key = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.value = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.output = linear(self.heads * self.head_dim, width, config.output_bias)
        self.q_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None

    def queries(self, x: Tensor) -> Tensor:
        """Those of ``x [B, N, D]`` before they are rotated: ``[B, H, N, K]``."""
        query = self._split(self.query(x), self.heads)
        return query if self.q_norm is None else self.q_norm(query)

    def remember(self, x: Tensor, state: State, ctx: Context) -> State:
        """Keys, values and key positions of the past and of the new tokens ``x [B, S, D]``."""
        value = self._split(self.value(x), self.kv_heads)
        return {
            "key": torch.cat([state["key"], self._new_keys(x, ctx)], dim=2),
            "value": torch.cat([state["value"], value], dim=2),
            "key_positions": torch.cat([state["key_positions"], ctx.positions], dim=1),
        }

    def attend(self, query: Tensor, positions: Tensor, memory: State, ctx: Context) -> Tensor:
        """What rotated queries ``[B, H, N, K]`` at ``positions [B, N]`` read, as ``[B, N, D]``.

        A query at position -1 reads nothing: its row is the bias of the output projection.
        """
        y = ctx.attend(
            query,
            positions,
            memory["key"],
            memory["value"],
            memory["key_positions"],
            scale=self.scale,
            window=self.window,
        )
        if y is None:
            y = self._attend(query, positions, memory, ctx)
        return self.joined(y)

    def joined(self, y: Tensor) -> Tensor:
        """What the heads read, ``[B, H, N, K]``, through the output projection: ``[B, N, D]``."""
        out: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return out

    def cache_spec(self, slots: int | str) -> dict[str, StateSpec]:
        """The state of the keys and values of so many past tokens, ``"P"`` for all."""
        cache = ("B", self.kv_heads, slots, self.head_dim)
        return {
            "key": StateSpec(cache, role="key"),
            "value": StateSpec(cache, role="value"),
            "key_positions": StateSpec(("B", slots), "i64", role="key_positions", fill=-1),
        }

    def projection_flops(self) -> int:
        """Multiply-adds of all projections of one token."""
        return sum(p.weight.numel() for p in (self.query, self.key, self.value, self.output))

    def _attend(self, query: Tensor, positions: Tensor, memory: State, ctx: Context) -> Tensor:
        """The attention op with what the position encoding adds to it: ``[B, H, N, K]``."""
        key, key_positions = memory["key"], memory["key_positions"]
        scale, bias = self.scale, None
        if (encoding := ctx.encoding) is not None:
            if not encoding.caches_rotated_keys:
                key = encoding.rotate(key, key_positions, ctx.context_length, "key")
            bias = encoding.bias(positions, key_positions)
            factor = encoding.logit_scale(ctx.context_length)
            if isinstance(factor, Tensor):
                query = query * factor.reshape(-1, 1, 1, 1).to(query.dtype)
            elif factor != 1.0:
                scale = factor * (scale or self.head_dim**-0.5)
        return attention(
            query,
            key,
            memory["value"],
            positions,
            key_positions,
            bias,
            scale=scale,
            window=self.window,
        )

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
