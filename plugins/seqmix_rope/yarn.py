"""YaRN: rotary frequencies stretched by parts, and warmer attention (arXiv 2309.00071)."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from seqmix_rope.by_parts import NtkByParts, NtkByPartsConfig, PartsOptions
from seqmix_rope.scaling import Scale, magnitude

__all__ = ["Yarn", "YarnConfig", "YarnOptions"]


class YarnOptions(PartsOptions):
    """What YaRN adds to NTK-by-parts.

    ``attention_factor`` replaces the factor on cos and sin, ``attn_factor`` multiplies it.
    With both ``mscale`` and ``mscale_all_dim`` the factor is the ratio of their magnitudes (one of
    them alone is ignored, as in Hugging Face's code); ``scale_softmax`` then multiplies the logits
    by the square of the latter, as DeepSeek models do.
    """

    attention_factor: float | None = Field(default=None, gt=0)
    attn_factor: float | None = Field(default=None, gt=0)
    mscale: float | None = Field(default=None, ge=0)
    mscale_all_dim: float | None = Field(default=None, ge=0)
    scale_softmax: bool = False

    @model_validator(mode="after")
    def _factors_agree(self) -> Self:
        if self.attention_factor is not None and self.attn_factor is not None:
            raise ValueError(
                "attention_factor replaces YaRN's factor and attn_factor multiplies it; give one"
            )
        if self.scale_softmax and not self.mscale_all_dim:
            raise ValueError("scale_softmax needs mscale_all_dim, the magnitude that it squares")
        return self


class YarnConfig(NtkByPartsConfig, YarnOptions):
    """Options of :class:`Yarn`."""


class Yarn(NtkByParts):
    """YaRN with a fixed scale: it holds at every length, short ones included.

    NTK-by-parts, and queries and keys both multiplied by ``0.1 ln(s) + 1`` (YaRN, section 3.3).
    """

    Config = YarnConfig
    config: YarnConfig

    def stretched(self, s: Scale) -> tuple[Any, Any, Any]:
        """The frequencies of NTK-by-parts, and the factors with their overrides."""
        c = self.config
        inv_freq, _, _ = super().stretched(s)
        logits = magnitude(s, c.mscale_all_dim or 0.0) ** 2 if c.scale_softmax else 1.0
        return inv_freq, self._attention_factor(s), logits

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ramps; a factor of its own, and one of the softmax."""
        one, other = super().examples()
        deepseek = {"mscale": 0.7, "mscale_all_dim": 1.3, "scale_softmax": True}
        return [{**one, **deepseek}, {**other, "attn_factor": 0.9}]

    def _attention_factor(self, s: Scale) -> Any:
        c = self.config
        if c.attention_factor is not None:
            return c.attention_factor
        own = magnitude(s)
        if c.mscale and c.mscale_all_dim:
            own = magnitude(s, c.mscale) / magnitude(s, c.mscale_all_dim)
        return own * (c.attn_factor or 1.0)
