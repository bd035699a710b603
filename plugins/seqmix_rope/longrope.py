"""LongRoPE: one searched divisor per pair, for sequences up to L and for longer ones."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix_rope.per_length import PerLength, PerLengthConfig, Spectra
from seqmix_rope.scaling import Array, constants_like, rope_frequencies

__all__ = ["LongRope", "LongRopeConfig"]

Divisors = list[Annotated[float, Field(gt=0)]]


class LongRopeConfig(PerLengthConfig):
    """Options of :class:`LongRope`; lengths in tokens.

    ``short_factor`` and ``long_factor`` have one divisor per rotated pair. ``attention_factor``
    defaults to ``sqrt(1 + ln(factor) / ln(L))``, and to 1 for a factor of at most 1.

    Give the same list twice to use it at every length, as servers of long texts do: then keys are
    cached rotated, which is cheaper.
    """

    original_context_length: PositiveInt
    short_factor: Divisors
    long_factor: Divisors
    factor: float = Field(default=1.0, gt=0)
    attention_factor: float | None = Field(default=None, gt=0)


class LongRope(PerLength):
    """LongRoPE (Ding et al. 2024), as Phi-3 has it: long divisors for more than L tokens."""

    Config = LongRopeConfig
    config: LongRopeConfig

    def __init__(self, config: LongRopeConfig, head_dim: int) -> None:
        """Raise ConfigError when a list has not one divisor per rotated pair."""
        super().__init__(config, head_dim)
        for name in ("short_factor", "long_factor"):
            found = len(getattr(config, name))
            if found != self.rotary_dim // 2:
                raise ConfigError(
                    f"{name} has {found} divisors, expected {self.rotary_dim // 2}: one for each "
                    f"pair of the {self.rotary_dim} rotated entries"
                )
        if config.short_factor == config.long_factor:
            self.per_query = self.attends = False
            self.splits = self.caches_rotated_keys = True

    def divided(self, divisors: list[float]) -> Array:
        """The plain frequencies over one list."""
        plain = rope_frequencies(self.rotary_dim, self.config.theta).inv_freq
        found: Array = plain / np.array(divisors)
        return found

    def spectra(self, length: Tensor) -> Spectra:
        """The long list beyond L, the short one up to it."""
        c = self.config
        lists = self.divided(c.short_factor), self.divided(c.long_factor)
        short, long = constants_like(length, *lists)
        beyond = (length > float(c.original_context_length)).unsqueeze(-1)
        ones = torch.ones_like(length)
        return torch.where(beyond, long, short), ones * self.attention_factor, ones

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin, the same for both lists."""
        c = self.config
        if c.attention_factor is not None:
            return c.attention_factor
        if c.factor <= 1 or c.original_context_length == 1:
            return 1.0
        return math.sqrt(1 + math.log(c.factor) / math.log(c.original_context_length))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Every mode, of a context that the kit's lengths leave behind."""
        lists = {"short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 4.0, 9.0]}
        shared = {"theta": 100.0, "original_context_length": 5, "factor": 4.0, **lists}
        part = {"short_factor": [1.0, 1.2], "long_factor": [2.0, 3.0], "rotary_dim": 4}
        return [
            {**shared, "mode": "per_query"},
            {**shared, **part, "layout": "interleaved", "granularity": 3},
            {**shared, "mode": "per_window"},
        ]
