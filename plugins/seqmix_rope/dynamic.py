"""Dynamic scaling: PI, NTK, NTK-by-parts and YaRN whose factor follows the length (YaRN, 3.4)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor

from seqmix_rope.by_parts import NtkByParts, PartsOptions
from seqmix_rope.per_length import PerLength, PerLengthConfig, Spectra
from seqmix_rope.stretched import Linear, Ntk, Stretched, StretchedConfig
from seqmix_rope.yarn import Yarn, YarnOptions

__all__ = [
    "Dynamic",
    "DynamicConfig",
    "DynamicLinear",
    "DynamicNtk",
    "DynamicNtkByParts",
    "DynamicYarn",
]


class DynamicConfig(PerLengthConfig):
    """How the scale follows the length.

    With ``original_context_length`` L and l tokens it is ``s = 1 + rate * (max(1, l / L) - 1)``. A
    ``rate`` of 1 is the paper, ``s = max(1, l / L)``; Hugging Face's type dynamic calls it factor.
    """

    original_context_length: PositiveInt
    rate: float = Field(default=1.0, gt=0)


class DynamicPartsConfig(DynamicConfig, PartsOptions):
    """Options of :class:`DynamicNtkByParts`."""


class DynamicYarnConfig(DynamicConfig, YarnOptions):
    """Options of :class:`DynamicYarn`."""


class Dynamic(PerLength):
    """A scaling by one factor, with the factor of the current length; none up to L tokens.

    Subclasses name the scaling, whose formula is used with a tensor for the factor: one exported
    graph serves every length.
    """

    Config: ClassVar[type[BaseModel]] = DynamicConfig
    config: DynamicConfig
    follows_length: ClassVar[bool] = True
    method: ClassVar[type[Stretched]]

    def __init__(self, config: DynamicConfig, head_dim: int) -> None:
        """Raise ConfigError when the sizes do not fit, as :class:`Rope` does."""
        super().__init__(config, head_dim)
        known = self.method.Config.model_fields
        shared = {key: value for key, value in config.model_dump().items() if key in known}
        schema = cast(type[StretchedConfig], self.method.Config)
        self.scaling = self.method(schema(**shared, factor=1.0), head_dim)

    def scale(self, length: Tensor) -> Tensor:
        """S for so many tokens, float64."""
        grown = length / float(self.config.original_context_length)
        return 1.0 + self.config.rate * (grown.clamp(min=1.0) - 1.0)

    def spectra(self, length: Tensor) -> Spectra:
        """The formula of the method at :meth:`scale`."""
        s = self.scale(length)
        inv_freq, *factors = self.scaling.stretched(s.unsqueeze(-1))
        factor, logits = (
            f.squeeze(-1) if isinstance(f, Tensor) else torch.full_like(s, f) for f in factors
        )
        return inv_freq, factor, logits

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The method's, each mode; a context that the kit's lengths leave behind."""
        one, other = (dict(options) for options in cls.method.examples()[:2])
        for options in (one, other):
            del options["factor"]
        one["original_context_length"] = other["original_context_length"] = 5
        return [
            one,
            {**other, "granularity": 3, "rate": 1.5},
            {**one, "mode": "per_window"},
        ]


class DynamicLinear(Dynamic):
    """Dynamic position interpolation."""

    method = Linear


class DynamicNtk(Dynamic):
    """Dynamic NTK: works well on models that were never trained beyond L (YaRN, appendix B.7)."""

    method = Ntk


class DynamicNtkByParts(Dynamic):
    """Dynamic NTK-by-parts."""

    Config = DynamicPartsConfig
    method = NtkByParts


class DynamicYarn(Dynamic):
    """Dynamic YaRN: the factor on cos and sin follows the length too."""

    Config = DynamicYarnConfig
    config: DynamicYarnConfig
    method = Yarn

    @property
    def scales_logits(self) -> bool:
        """As ``scale_softmax`` says."""
        return self.config.scale_softmax
