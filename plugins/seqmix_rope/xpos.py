"""xPos: rotary encoding whose pairs also decay with the distance (Sun et al. 2022, 2212.10554).

B batch, H heads, S queries, T keys, K key size, R rotated size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from seqmix.ops.attention import attention
from seqmix_rope.query_blocks import in_query_blocks
from seqmix_rope.rope import Rope, RopeConfig

__all__ = ["XPos", "XPosConfig"]

# Exponents of e: a query and a key that both grow so much still have a finite product.
_LARGEST = 40.0
_LARGEST_HALF = 4.0


class XPosConfig(RopeConfig):
    """Options of :class:`XPos`.

    ``scale_base`` is a length in tokens, over which pair i decays by ``zeta_i = (2i/R + gamma) /
    (1 + gamma)``.
    """

    scale_base: PositiveInt = 512
    gamma: float = Field(default=0.4, gt=0)


class XPos(Rope):
    """Extrapolatable position embedding: pair i of a logit is multiplied by ``zeta_i^((n-m)/b)``.

    n is the query's position, m the key's, b ``scale_base``. The paper multiplies the query by
    ``zeta^(n/b)`` and the key by ``zeta^(-m/b)`` (equation 13), which soon leaves every float. Here
    keys are cached turned but not scaled, and both factors are taken relative to a position among
    the queries that attend: for keys of the past they are at most 1, whatever their distance, and
    those that underflow belong to pairs that have decayed. So any position is safe, and a sequence
    in pieces is the same as at once. Queries attend in blocks of ``scale_base`` tokens; a captured
    graph has one block per call, exact for some 60 times ``scale_base`` tokens at once (6 times in
    float16), and finite beyond.
    """

    Config = XPosConfig
    config: XPosConfig
    attends = True

    def decay(self) -> list[float]:
        """``-ln(zeta_i) / b`` of each pair, per token."""
        c, R = self.config, self.rotary_dim
        zetas = ((i / R + c.gamma) / (1 + c.gamma) for i in range(0, R, 2))
        return [-math.log(zeta) / c.scale_base for zeta in zetas]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        tables: tuple[Tensor, ...],
        *,
        scale: float = 0.0,
        window: int = 0,
    ) -> Tensor:
        """Attention of turned queries and keys, scaled relative to the middle of each block."""

        def block(rows: slice) -> Tensor:
            places = query_positions[:, rows]
            last = places.amax(1, keepdim=True)
            middle = (torch.where(places < 0, last, places).amin(1, keepdim=True) + last) // 2
            # Padding is no reason for a large factor, nor are keys that no query of the block sees.
            since = torch.where(places < 0, middle, places) - middle
            before = middle - torch.minimum(key_positions, last)
            return attention(
                self._scaled(query[:, :, rows], since),
                self._scaled(key, before),
                value,
                places,
                key_positions,
                scale=scale,
                window=window,
            )

        return in_query_blocks(block, query, key, longest=self.config.scale_base)

    def _scaled(self, x: Tensor, tokens: Tensor) -> Tensor:
        """``x [B, H, N, K]``, its pairs decayed over ``tokens [B, N]``."""
        decay = torch.tensor(self.decay(), dtype=torch.float64, device=x.device)
        exponents = tokens.to(torch.float64).unsqueeze(-1) * -decay
        limit = _LARGEST_HALF if x.dtype == torch.float16 else _LARGEST
        powers = torch.exp(exponents.clamp(max=limit)).to(self.table_dtype)
        both = torch.stack([powers, powers], -1 if self.interleaved else -2).flatten(-2)
        rest = both.new_ones(*both.shape[:2], x.shape[-1] - self.rotary_dim)
        factors = torch.cat([both, rest], -1)
        return (x * factors.unsqueeze(1)).to(x.dtype)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both layouts, one of them for a part of the head; decay that short sequences feel."""
        return [{**options, "scale_base": 16} for options in super().examples()]
