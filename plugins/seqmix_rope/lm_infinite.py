"""LM-Infinite: attention to the start and to a window, distances capped (Han et al. 2023).

arXiv 2308.16137, section 4: the Lambda-shaped mask and the distance ceiling.

Sizes: B batch, S sequence, D model width, H heads, K head size, W window, N tokens at the start.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.config import Kind
from seqmix.context import valid_last
from seqmix.state import State, StateSpec
from seqmix_rope.clipped import ClippedRule
from seqmix_rope.clipped_heads import ClippedHeads, ClippedHeadsConfig, rotation_of
from seqmix_rope.standing_in import clipped_kind, numbers_of

__all__ = ["LMInfinite", "LMInfiniteConfig"]


class LMInfiniteConfig(ClippedHeadsConfig):
    """Options of :class:`LMInfinite`; lengths in tokens.

    A token sees itself, the ``window - 1`` before it, and the first ``global_tokens``. Distances
    count at most as ``ceiling``, which defaults to the window.
    """

    window: PositiveInt
    global_tokens: int = Field(default=10, ge=0)
    ceiling: PositiveInt | None = None

    @model_validator(mode="after")
    def _ceiling_within_window(self) -> Self:
        if self.ceiling is not None and self.ceiling > self.window:
            raise ValueError(
                f"ceiling = {self.ceiling} should be at most window = {self.window}, the longest "
                "distance that is seen"
            )
        return self


class LMInfinite(ClippedHeads):
    """Attention with a Lambda-shaped mask; its state has N + W - 1 slots at any length.

    Query t sees key s if ``t - s < W`` or ``s < N``; their logit is ``q_t^T R(min(t - s, c)) k_s /
    sqrt(K)`` with the rotation R of RoPE and the ceiling c. It is RoPE exactly up to c tokens.
    """

    Config = LMInfiniteConfig

    def __init__(self, config: LMInfiniteConfig, width: int) -> None:
        """Four projections, and two norms when asked for."""
        super().__init__(config, width)
        self.window, self.global_tokens = config.window, config.global_tokens
        self.rule = ClippedRule(
            rotation_of(config),
            clip=config.ceiling or config.window,
            window=config.window,
            first=config.global_tokens,
            scale=config.scale or 0.0,
            interleaved=config.layout == "interleaved",
        )

    def kept(self, memory: State, new: int) -> State:
        """The first N tokens and the last W - 1, right-aligned; padding evicts nothing."""
        places = memory["key_positions"]
        real = places >= 0
        after = real.sum(1, keepdim=True) - real.to(torch.int64).cumsum(1)
        lasting = real & ((places < self.global_tokens) | (after < self.window - 1))
        order, _ = valid_last(lasting)
        kept = order.narrow(1, new, self.global_tokens + self.window - 1)
        filled = torch.gather(lasting, 1, kept)
        positions = torch.gather(places, 1, kept)
        out: State = {"key_positions": torch.where(filled, positions, -1)}
        for name in ("key", "value"):
            out[name] = _picked(memory[name], kept, filled)
        return out

    def state_spec(self) -> dict[str, StateSpec]:
        """Keys, values and their positions: N + W - 1 slots."""
        return self.cache_spec(self.global_tokens + self.window - 1)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Windows and starts that short sequences leave; a lower ceiling; nothing at the start."""
        shared = {"theta": 100.0, "heads": 3}
        return [
            {**shared, "head_dim": 6, "kv_heads": 1, "window": 3, "global_tokens": 2},
            {**shared, "head_dim": 7, "window": 5, "global_tokens": 1, "ceiling": 2, "bias": True,
             "rotary_dim": 4, "layout": "interleaved"},
            {**shared, "head_dim": 8, "window": 4, "global_tokens": 0, "output_bias": True},
        ]  # fmt: skip

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Four projections per token, and two products of size K per visible pair and head."""
        near = min(self.window, seq_len)
        beyond = seq_len - near
        pairs = near * (near + 1) // 2 + beyond * near
        # Query t >= W sees min(N, t - W + 1) tokens at the start beside its window.
        start = min(self.global_tokens, beyond)
        pairs += start * (start + 1) // 2 + (beyond - start) * start
        attended = 2 * pairs * self.heads * self.head_dim
        return 2 * batch_size * (seq_len * self.projection_flops() + attended)

    @classmethod
    def instead_of_attention(
        cls, attention: Kind, rotation: Kind, context_length: int, value: str
    ) -> Kind:
        """LM-Infinite for an attention layer of a model with RoPE; ``value`` is "", "W" or "W:N".

        The window defaults to the model's context.
        """
        window, first = numbers_of("lm-infinite", value, ("W", "N"))
        options: dict[str, Any] = {"window": window or context_length}
        if first is not None:
            options["global_tokens"] = first
        return clipped_kind("lm_infinite", attention, rotation, options)


def _picked(slots: Tensor, kept: Tensor, filled: Tensor) -> Tensor:
    """The slots ``[B, G, P, K]`` at ``kept [B, N]``, 0 where none is ``filled``."""
    index = kept[:, None, :, None].expand(-1, slots.shape[1], -1, slots.shape[3])
    picked = torch.gather(slots, 2, index)
    return torch.where(filled[:, None, :, None], picked, torch.zeros_like(picked))
