"""Scalings by one factor: what they share, and the two simplest, PI and NTK-aware."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.scaling import (
    Frequencies,
    Scale,
    constants_like,
    interpolate,
    ntk_exponents,
    rope_frequencies,
    stretch_base,
)

__all__ = ["Linear", "Ntk", "Stretched", "StretchedConfig"]


class StretchedConfig(RopeConfig):
    """Options of a scaling by one factor, extended length over original length."""

    factor: float = Field(gt=0)

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if self.factor < 1:
            # Released configurations have it, so it loads; whoever meant 1 / factor should know.
            warnings.warn(
                f"factor is {self.factor}, expected at least 1: a factor below 1 shrinks the "
                "context; give extended length / original length",
                stacklevel=2,
            )
        return self


class Stretched(Rope):
    """A scaling with a fixed factor: it holds at every length, short ones included.

    Keys are cached rotated, and the tables cost what they cost without scaling.
    """

    Config: ClassVar[type[BaseModel]] = StretchedConfig
    config: StretchedConfig

    @abstractmethod
    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """Frequencies, factor on cos and sin, and factor on logits, for a scale of ``s``.

        ``s`` is a number, or a float64 tensor ``[..., 1]``; then so are the results, with the pairs
        of the frequencies as their last axis. Factors that do not depend on s are numbers.
        """

    def frequencies(self, length: int = 1) -> Frequencies:
        """Those of ``factor``, whatever the length."""
        inv_freq, factor, logits = self.stretched(self.config.factor)
        return Frequencies(inv_freq, float(factor), float(logits))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both layouts, one of them for a part of the head."""
        return [{**options, "factor": 2.5} for options in super().examples()]


class Linear(Stretched):
    """Position interpolation: every frequency over the factor (Chen et al. 2023).

    That is, positions over the factor; Hugging Face calls it linear.
    """

    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """All pairs alike."""
        (plain,) = constants_like(s, rope_frequencies(self.rotary_dim, self.config.theta).inv_freq)
        return interpolate(plain, s), 1.0, 1.0


class Ntk(Stretched):
    """NTK-aware interpolation: a larger base, so that slow pairs are stretched and fast ones kept.

    The base becomes ``theta * factor^(R/(R-2))`` (YaRN, section 3.1).
    """

    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """The first pair stays, the last is divided by ``s``."""
        plain, exponents = constants_like(
            s,
            rope_frequencies(self.rotary_dim, self.config.theta).inv_freq,
            ntk_exponents(self.rotary_dim),
        )
        return stretch_base(plain, exponents, s), 1.0, 1.0
