"""YaRN: rotary frequencies stretched by parts, and warmer attention (arXiv 2309.00071)."""

from __future__ import annotations

import warnings
from typing import Self

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.scaling import Frequencies, magnitude, yarn_frequencies

__all__ = ["Yarn", "YarnConfig"]


class YarnConfig(RopeConfig):
    """Options of :class:`Yarn`; lengths in tokens.

    ``original_context_length`` is the length the model was trained with, never the extended one.
    ``attention_factor`` replaces the factor on cos and sin, ``attn_factor`` multiplies it.
    With both ``mscale`` and ``mscale_all_dim`` the factor is the ratio of their magnitudes;
    ``scale_softmax`` then multiplies the logits by the square of the latter, as DeepSeek models do.
    """

    factor: float = Field(gt=0)
    original_context_length: PositiveInt
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    truncate: bool = True
    attention_factor: float | None = Field(default=None, gt=0)
    attn_factor: float | None = Field(default=None, gt=0)
    mscale: float | None = Field(default=None, ge=0)
    mscale_all_dim: float | None = Field(default=None, ge=0)
    scale_softmax: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.attention_factor is not None and self.attn_factor is not None:
            raise ValueError(
                "attention_factor replaces YaRN's factor and attn_factor multiplies it; give one"
            )
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast = {self.beta_fast} turns bound the pairs that are kept, "
                f"it should not be below beta_slow = {self.beta_slow}"
            )
        if self.scale_softmax and not self.mscale_all_dim:
            raise ValueError("scale_softmax needs mscale_all_dim, the magnitude that it squares")
        if self.factor < 1:
            # Released configurations have it, so it loads; whoever meant 1 / factor should know.
            warnings.warn(
                f"yarn: factor is {self.factor}, expected at least 1: a factor below 1 shrinks the "
                "context; give extended length / original length",
                stacklevel=2,
            )
        return self


class Yarn(Rope):
    """YaRN with a fixed scale: it holds at every length, short ones included.

    Keys are cached rotated.
    """

    Config = YarnConfig
    config: YarnConfig

    def frequencies(self) -> Frequencies:
        """NTK-by-parts frequencies, and the attention factor with its overrides."""
        c = self.config
        return yarn_frequencies(
            self.rotary_dim,
            c.theta,
            c.factor,
            c.original_context_length,
            c.beta_fast,
            c.beta_slow,
            truncate=c.truncate,
            attention_factor=self._attention_factor(),
        )

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        """The square of the magnitude of ``mscale_all_dim`` when ``scale_softmax`` is set."""
        c = self.config
        return magnitude(c.factor, c.mscale_all_dim or 0.0) ** 2 if c.scale_softmax else 1.0

    def _attention_factor(self) -> float:
        c = self.config
        if c.attention_factor is not None:
            return c.attention_factor
        own = magnitude(c.factor)
        if c.mscale and c.mscale_all_dim:
            own = magnitude(c.factor, c.mscale) / magnitude(c.factor, c.mscale_all_dim)
        return own * (c.attn_factor or 1.0)
