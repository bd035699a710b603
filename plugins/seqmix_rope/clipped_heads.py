"""Attention mixers that turn their own queries and keys: projections, cache, clipped distances.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, K head size, R rotated size.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.branches import RMSNorm, linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_rope.clipped import ClippedRule, clipped_attention
from seqmix_rope.scaling import rope_frequencies

__all__ = ["ClippedHeads", "ClippedHeadsConfig"]


class ClippedHeadsConfig(Strict):
    """Options of the mixer ``attention`` without its window, and of the encoding ``rope``.

    ``kv_heads`` defaults to ``heads``, scale to 1/sqrt(K); ``qk_norm`` is before the rotation.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    kv_heads: PositiveInt | None = None
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_eps: float = Field(default=1e-6, gt=0)
    scale: float | None = Field(default=None, gt=0)
    theta: float = Field(default=10000.0, gt=1)
    rotary_dim: PositiveInt | None = Field(default=None, multiple_of=2)
    layout: Literal["half", "interleaved"] = "half"

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}")
        rotated = self.rotary_dim or self.head_dim
        if rotated % 2 or rotated > self.head_dim:
            raise ValueError(
                f"rotary_dim is {rotated} with head_dim {self.head_dim}; expected an even number, "
                "at most head_dim"
            )
        return self


class ClippedHeads(SequenceMixer):
    """Softmax attention by a :class:`ClippedRule`; keys are cached as they are, before rotation.

    The weights are those of the mixer ``attention``, name by name, so it can stand in its place in
    a trained model; then the model has no position encoding of its own.
    """

    rule: ClippedRule

    def __init__(self, config: ClippedHeadsConfig, width: int) -> None:
        """Four projections, and two norms when asked for."""
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_dim = config.head_dim
        self.query = linear(width, self.heads * self.head_dim, config.bias)
        self.key = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.value = linear(width, self.kv_heads * self.head_dim, config.bias)
        self.output = linear(self.heads * self.head_dim, width, config.output_bias)
        self.q_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.qk_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Attend from the new tokens to the state and to themselves, and remember them.

        ConfigError where the model has a position encoding that turns queries and keys as well.
        """
        if ctx.encoding is not None and ctx.encoding.built_for == "head_dim":
            raise ConfigError(
                f"mixer '{type(self).__name__}' turns its queries and keys itself, and the model's "
                "position encoding would do so again; set the model's 'position' to null"
            )
        query, key = self._split(self.query(x), self.heads), self._split(self.key(x), self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        value = self._split(self.value(x), self.kv_heads)
        memory = {
            "key": torch.cat([state["key"], key], dim=2),
            "value": torch.cat([state["value"], value], dim=2),
            "key_positions": torch.cat([state["key_positions"], ctx.positions], dim=1),
        }
        y = clipped_attention(
            self.scaled(query, ctx.positions),
            memory["key"],
            memory["value"],
            ctx.positions,
            memory["key_positions"],
            self.rule,
        )
        out: Tensor = self.output(y.transpose(1, 2).flatten(2))
        if self.output.bias is not None:
            out = mask_padding(out, ctx)
        return out, self.kept(memory, x.shape[1])

    def scaled(self, query: Tensor, positions: Tensor) -> Tensor:
        """What a mixer multiplies its queries ``[B, H, S, K]`` by; nothing here."""
        return query

    def kept(self, memory: State, new: int) -> State:
        """What is remembered of the past and ``new`` tokens; everything here."""
        return memory

    def cache_spec(self, slots: int | str) -> dict[str, StateSpec]:
        """The state of the keys and values of so many tokens, ``"P"`` for all."""
        cache = ("B", self.kv_heads, slots, self.head_dim)
        return {
            "key": StateSpec(cache, role="key"),
            "value": StateSpec(cache, role="value"),
            "key_positions": StateSpec(("B", slots), "i64", role="key_positions", fill=-1),
        }

    def state_spec(self) -> dict[str, StateSpec]:
        """Keys, values and their positions, one slot per token."""
        return self.cache_spec("P")

    def projection_flops(self) -> int:
        """Multiply-adds of the projections of one token."""
        return sum(p.weight.numel() for p in (self.query, self.key, self.value, self.output))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """``[B, S, heads * K] -> [B, heads, S, K]``."""
        return x.reshape(*x.shape[:2], heads, self.head_dim).transpose(1, 2)


def rotation_of(config: ClippedHeadsConfig) -> tuple[float, ...]:
    """Radians per token of each rotated pair."""
    return tuple(rope_frequencies(config.rotary_dim or config.head_dim, config.theta).inv_freq)
