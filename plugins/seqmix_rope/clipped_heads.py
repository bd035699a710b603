"""Attention mixers that turn their own queries and keys: projections, cache, clipped distances.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, K head size, R rotated size.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.attention_heads import AttentionHeads, HeadsConfig
from seqmix.branches import mask_padding
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.state import State, StateSpec
from seqmix_rope.clipped import ClippedRule, clipped_attention
from seqmix_rope.scaling import rope_frequencies

__all__ = ["ClippedHeads", "ClippedHeadsConfig"]


class ClippedHeadsConfig(HeadsConfig):
    """Options of the mixer ``attention`` without its window, and of the encoding ``rope``."""

    theta: float = Field(default=10000.0, gt=1)
    rotary_dim: PositiveInt | None = Field(default=None, multiple_of=2)
    layout: Literal["half", "interleaved"] = "half"

    @model_validator(mode="after")
    def _rotation_fits(self) -> Self:
        rotated = self.rotary_dim or self.head_dim
        if rotated % 2 or rotated > self.head_dim:
            raise ValueError(
                f"rotary_dim is {rotated} with head_dim {self.head_dim}; expected an even number, "
                "at most head_dim"
            )
        return self


class ClippedHeads(AttentionHeads):
    """Softmax attention by a :class:`ClippedRule`; keys are cached as they are, before rotation.

    The weights are those of the mixer ``attention``, name by name, so it can stand in its place in
    a trained model; then the model has no position encoding of its own.
    """

    rule: ClippedRule

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Attend from the new tokens to the state and to themselves, and remember them.

        ConfigError where the model has a position encoding that turns queries and keys as well.
        """
        if ctx.encoding is not None and ctx.encoding.built_for == "head_dim":
            raise ConfigError(
                f"mixer '{type(self).__name__}' turns its queries and keys itself, and the model's "
                "position encoding would do so again; set the model's 'position' to null"
            )
        memory = self.remember(x, state, ctx)
        y = self.joined(
            clipped_attention(
                self.scaled(self.queries(x), ctx.positions),
                memory["key"],
                memory["value"],
                ctx.positions,
                memory["key_positions"],
                self.rule,
            )
        )
        if self.output.bias is not None:
            y = mask_padding(y, ctx)
        return y, self.kept(memory, x.shape[1])

    def scaled(self, query: Tensor, positions: Tensor) -> Tensor:
        """What a mixer multiplies its queries ``[B, H, S, K]`` by; nothing here."""
        return query

    def kept(self, memory: State, new: int) -> State:
        """What is remembered of the past and ``new`` tokens; everything here."""
        return memory

    def state_spec(self) -> dict[str, StateSpec]:
        """Keys, values and their positions, one slot per token."""
        return self.cache_spec("P")


def rotation_of(config: ClippedHeadsConfig) -> tuple[float, ...]:
    """Radians per token of each rotated pair."""
    return tuple(rope_frequencies(config.rotary_dim or config.head_dim, config.theta).inv_freq)
