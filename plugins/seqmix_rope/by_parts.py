"""NTK-by-parts: fast pairs are kept, slow ones interpolated, a ramp lies between (YaRN, 3.2)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, PositiveInt, model_validator

from seqmix_rope.rope import RopeConfig
from seqmix_rope.scaling import (
    Array,
    Scale,
    blend,
    constants_like,
    correction_range,
    pair_ramp,
    rope_frequencies,
    turn_ramp,
)
from seqmix_rope.stretched import Stretched, StretchedConfig

__all__ = ["NtkByParts", "NtkByPartsConfig", "PartsOptions"]


class PartsOptions(RopeConfig):
    """Which pairs are stretched; lengths in tokens.

    ``original_context_length`` is the length the model was trained with, never the extended one.
    Pairs that turn more than ``beta_fast`` times within it are kept, those that turn less than
    ``beta_slow`` times are stretched. Between them ``ramp`` is linear in the pair's index
    (``pairs``: what every implementation does, and released models were trained with) or in its
    number of turns (``turns``: what the paper says); frequencies differ by up to two thirds.
    ``truncate`` rounds the ends of the first one outwards to whole pairs.
    """

    original_context_length: PositiveInt
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    truncate: bool = True
    ramp: Literal["pairs", "turns"] = "pairs"

    @model_validator(mode="after")
    def _betas_in_order(self) -> Self:
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast = {self.beta_fast} turns bound the pairs that are kept, "
                f"it should not be below beta_slow = {self.beta_slow}"
            )
        if self.ramp == "turns" and self.beta_fast == self.beta_slow:
            raise ValueError(
                f"a ramp over turns needs two ends, found beta_fast = beta_slow = {self.beta_fast}"
            )
        return self


class NtkByPartsConfig(StretchedConfig, PartsOptions):
    """Options of :class:`NtkByParts`."""


class NtkByParts(Stretched):
    """NTK-by-parts with a fixed factor, without YaRN's attention factor."""

    Config: ClassVar[type[BaseModel]] = NtkByPartsConfig
    config: NtkByPartsConfig

    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """Each pair divided by ``s`` in part."""
        plain = rope_frequencies(self.rotary_dim, self.config.theta).inv_freq
        spectrum, ramp = constants_like(s, plain, self._interpolated(plain))
        return blend(spectrum, ramp, s), 1.0, 1.0

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ramps, over a context so short that some pairs lie between."""
        one, other = super().examples()
        # Between the two ends lie pairs of each kind.
        shared = {"original_context_length": 12, "beta_fast": 1.5, "beta_slow": 0.1}
        return [{**one, **shared, "truncate": False}, {**other, **shared, "ramp": "turns"}]

    def _interpolated(self, plain: Array) -> Array:
        """The part of each pair that is stretched."""
        c = self.config
        if c.ramp == "turns":
            return turn_ramp(plain, c.original_context_length, c.beta_fast, c.beta_slow)
        low, high = correction_range(
            self.rotary_dim,
            c.theta,
            c.original_context_length,
            c.beta_fast,
            c.beta_slow,
            truncate=c.truncate,
        )
        return pair_ramp(self.rotary_dim, low, high)
