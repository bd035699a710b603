"""Proportional rotary encoding: some pairs of the whole head turn, the others stand still."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.scaling import Frequencies, rope_frequencies

__all__ = ["Proportional", "ProportionalConfig"]


class ProportionalConfig(RopeConfig):
    """``part`` of the pairs turn, their frequencies over ``factor``."""

    part: float = Field(default=1.0, gt=0, le=1)
    factor: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.rotary_dim is not None:
            raise ValueError("rotary_dim belongs to the other encodings; this one has part")
        return self


class Proportional(Rope):
    """Gemma's: exponents over the whole head, and a frequency of 0 for pairs beyond the part.

    Unlike a smaller ``rotary_dim``, pairs are those of the whole head: (i, i + K/2).
    """

    Config = ProportionalConfig
    config: ProportionalConfig

    def frequencies(self, length: int = 1) -> Frequencies:
        """``int(part * K // 2)`` of them are not 0."""
        inv_freq = rope_frequencies(self.rotary_dim, self.config.theta).inv_freq
        inv_freq = inv_freq / self.config.factor
        inv_freq[int(self.config.part * self.rotary_dim // 2) :] = 0.0
        return Frequencies(inv_freq)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A part, in both layouts."""
        shared = {"theta": 100.0, "part": 0.7}
        return [shared, {**shared, "factor": 2.0, "layout": "interleaved"}]
