"""Llama 3.1's scaling: NTK-by-parts as the paper has it, between two numbers of turns."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, PositiveInt, model_validator

from seqmix_rope.scaling import Scale, blend, constants_like, rope_frequencies, turn_ramp
from seqmix_rope.stretched import Stretched, StretchedConfig

__all__ = ["Llama3", "Llama3Config"]


class Llama3Config(StretchedConfig):
    """Options of :class:`Llama3`; lengths in tokens.

    Pairs that turn more than ``high_freq_factor`` times within ``original_context_length`` are
    kept, those that turn less than ``low_freq_factor`` times are divided by ``factor``.
    """

    original_context_length: PositiveInt
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor = {self.high_freq_factor} should be above "
                f"low_freq_factor = {self.low_freq_factor}: pairs between the two are blended"
            )
        return self


class Llama3(Stretched):
    """The scaling of Llama 3.1 and later: no factor on cos and sin."""

    Config = Llama3Config
    config: Llama3Config

    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """A ramp linear in turns."""
        c = self.config
        plain = rope_frequencies(self.rotary_dim, c.theta).inv_freq
        ramp = turn_ramp(plain, c.original_context_length, c.high_freq_factor, c.low_freq_factor)
        spectrum, interpolated = constants_like(s, plain, ramp)
        return blend(spectrum, interpolated, s), 1.0, 1.0

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A context so short that some pairs lie between."""
        shared = {"original_context_length": 12, "low_freq_factor": 0.1, "high_freq_factor": 1.5}
        return [{**options, **shared} for options in super().examples()]
