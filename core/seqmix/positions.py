"""Position encodings that are added to the token embeddings: learned, and of sines and cosines.

Sizes: B batch, S sequence, D model width, N positions of a table.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from seqmix.blocks import Strict
from seqmix.config import INIT_STD
from seqmix.errors import ConfigError
from seqmix.position import PositionEncoding

__all__ = ["Learned", "LearnedConfig", "Sinusoidal", "SinusoidalConfig"]


class LearnedConfig(Strict):
    """``max_positions`` is the size N of the table; fresh rows are normal with ``init_std``."""

    max_positions: PositiveInt
    init_std: float = Field(default=INIT_STD, gt=0)


class Learned(PositionEncoding):
    """One learned vector per position, added to the embedding (GPT-2; Radford et al. 2019).

    There is nothing beyond the table: position N and later ones are errors, not a clamp.
    """

    Config: ClassVar[type[BaseModel]] = LearnedConfig
    built_for: ClassVar[Literal["head_dim", "width"]] = "width"

    def __init__(self, config: LearnedConfig, width: int) -> None:
        """A table ``weight [N, D]``."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_positions, width))
        nn.init.normal_(self.weight, std=config.init_std)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A table that holds what the conformance kit asks for."""
        return [{"max_positions": 4096}]

    def embed(self, positions: Tensor) -> Tensor:
        """The rows of ``positions [B, S]``, padding as 0; ConfigError for one beyond the table."""
        if not torch.compiler.is_compiling():
            self._check(positions)
        return F.embedding(positions.clamp(min=0), self.weight)

    def _check(self, positions: Tensor) -> None:
        """Elsewhere than on a CPU looking would cost a wait, and the kernel itself refuses."""
        if positions.device.type != "cpu" or not positions.numel():
            return
        size, last = self.weight.shape[0], int(positions.max())
        if last >= size:
            raise ConfigError(
                f"position encoding 'learned': positions should be in 0..{size - 1}, found {last}; "
                "cut the input, or train a model with a larger max_positions"
            )


class SinusoidalConfig(Strict):
    """The wavelengths run from 2 pi to 2 pi times ``theta``."""

    theta: float = Field(default=10000.0, gt=1)


class Sinusoidal(PositionEncoding):
    """Sines and cosines of the position, added to the embedding (Vaswani et al. 2017, section 3.5).

    Channel 2i is ``sin(p / theta^(2i / D))``, channel 2i + 1 its cosine; an odd width drops the
    last cosine. Nothing is stored and there is no last position; angles are float64.
    """

    Config: ClassVar[type[BaseModel]] = SinusoidalConfig
    built_for: ClassVar[Literal["head_dim", "width"]] = "width"

    def __init__(self, config: SinusoidalConfig, width: int) -> None:
        """Remember the sizes."""
        super().__init__()
        self.width = width
        self.theta = config.theta

    def embed(self, positions: Tensor) -> Tensor:
        """``[B, S, D]`` in float64, for ``positions [B, S]``; padding as 0."""
        rates = [self.theta ** (-2 * i / self.width) for i in range((self.width + 1) // 2)]
        inverse = torch.tensor(rates, dtype=torch.float64, device=positions.device)
        angles = positions.clamp(min=0).to(torch.float64).unsqueeze(-1) * inverse
        waves = torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(2)
        return waves[..., : self.width]
