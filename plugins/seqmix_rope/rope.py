"""Rotary position encoding: pairs of a query or key turn by angles that grow with the position.

B batch, H heads, S sequence, K head size, R rotated size (R <= K).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor

from seqmix.config import Strict
from seqmix.errors import ConfigError
from seqmix.ops.rotary import rotary
from seqmix.position import PositionEncoding
from seqmix_rope.scaling import Frequencies, rope_frequencies

__all__ = ["Rope", "RopeConfig", "rotary_tables"]


class RopeConfig(Strict):
    """Options of :class:`Rope`.

    ``layout`` says which entries form a pair: ``half`` is (i, i + R/2), as Llama, Qwen and GPT-NeoX
    weights have it in Hugging Face files; ``interleaved`` is (2i, 2i + 1), as GPT-J and Meta's own
    files have it. ``rotary_dim`` rotates the first entries only.
    """

    theta: float = Field(default=10000.0, gt=1)
    rotary_dim: PositiveInt | None = Field(default=None, multiple_of=2)
    layout: Literal["half", "interleaved"] = "half"


class Rope(PositionEncoding):
    """Rotary position encoding without scaling (RoFormer, equation 34).

    The angles are products in float64 of int64 positions and float64 frequencies, and so are cos
    and sin; the finished tables are cast last, to float32, or to float64 in a float64 model. The
    frequencies are no buffers: they follow from the configuration, so no cast of the model and no
    checkpoint can spoil them.
    """

    Config: ClassVar[type[BaseModel]] = RopeConfig

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        """Raise ConfigError when ``head_dim`` is odd or smaller than ``rotary_dim``."""
        super().__init__()
        self.config = config
        self.rotary_dim = config.rotary_dim or head_dim
        if self.rotary_dim % 2 or self.rotary_dim > head_dim:
            raise ConfigError(
                f"rotary_dim is {self.rotary_dim} with head_dim {head_dim}; "
                "expected an even number, at most head_dim"
            )
        self.table_dtype = torch.float32

    @property
    def interleaved(self) -> bool:
        """Whether neighbouring entries form a pair."""
        return self.config.layout == "interleaved"

    def frequencies(self, length: int = 1) -> Frequencies:
        """Radians per token of each pair, and the factor on cos and sin, for so many tokens."""
        return rope_frequencies(self.rotary_dim, self.config.theta)

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        """``(cos, sin)``, each ``[B, S, R/2]``, for int64 positions ``[B, S]``; -1 counts as 0."""
        numbers, factor = _numbers_of(self)
        inv_freq = torch.tensor(numbers, dtype=torch.float64, device=positions.device)
        return rotary_tables(positions, inv_freq, factor, self.table_dtype)

    def rotate_by(self, x: Tensor, tables: tuple[Tensor, ...], role: str) -> Tensor:
        """Turn the pairs of ``x [B, H, S, K]``; queries and keys alike."""
        cos, sin = tables
        return rotary(x, cos, sin, interleaved=self.interleaved)

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        """The factor on the whole logit that the scaling asks for, mostly 1."""
        return self.frequencies().logit_factor

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both layouts, one of them for a part of the head."""
        return [{"theta": 100.0}, {"theta": 100.0, "rotary_dim": 4, "layout": "interleaved"}]

    def _apply(self, fn: Callable[[Tensor], Any], recurse: bool = True) -> Self:
        """Follow the model's conversion to or from float64; narrower types keep float32 tables."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        converted = fn(torch.zeros((), dtype=self.table_dtype)).dtype
        self.table_dtype = torch.float64 if converted == torch.float64 else torch.float32
        return self


# torch does not annotate it.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _numbers_of(encoding: Rope) -> tuple[list[float], float]:
    """Frequencies and factor as numbers: to torch.compile they are constants, not computed."""
    found = encoding.frequencies()
    return found.inv_freq.tolist(), found.attention_factor


def rotary_tables(
    positions: Tensor, inv_freq: Tensor, factor: Tensor | float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """``factor`` times cos and sin of positions ``[B, S]`` times ``inv_freq [.., R/2]``.

    Angles and functions are float64, ``dtype`` is that of the result; positions of -1 count as 0.
    """
    angles = positions.clamp(min=0).to(torch.float64).unsqueeze(-1) * inv_freq
    cos, sin = torch.cos(angles), torch.sin(angles)
    if isinstance(factor, Tensor) or factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)
