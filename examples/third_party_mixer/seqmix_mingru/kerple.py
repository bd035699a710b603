"""KERPLE: a learned penalty on the distance (Chi et al. 2022, arXiv 2205.09921).

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import seqmix
import torch
from pydantic import PositiveInt
from seqmix.errors import ConfigError
from seqmix.ops import attention
from torch import Tensor, nn

__all__ = ["Kerple", "KerpleConfig"]


class KerpleConfig(seqmix.Strict):
    """``heads`` is the number of query heads H of every attention layer of the model."""

    heads: PositiveInt


class Kerple(seqmix.PositionEncoding):
    """``-r1_h log(1 + r2_h |t - s|)`` on the logit of query t and key s (the logarithmic variant).

    r1 and r2 are positive and learned, one of each per head; the parameters are their logarithms.
    """

    Config = KerpleConfig
    built_for: ClassVar[Literal["head_dim", "width"]] = "width"
    attends = True

    def __init__(self, config: KerpleConfig, width: int) -> None:
        """Any ``width`` will do: there is nothing that it decides."""
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(config.heads))
        self.log_rate = nn.Parameter(torch.zeros(config.heads))

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """``[B, H, S, T]``, float32 at least."""
        dtype = torch.promote_types(self.log_scale.dtype, torch.float32)
        scale, rate = (
            torch.exp(parameter.to(dtype)).view(1, -1, 1, 1)
            for parameter in (self.log_scale, self.log_rate)
        )
        far = query_positions.unsqueeze(-1) - key_positions.unsqueeze(1)
        return -scale * torch.log1p(rate * far.clamp(min=0).unsqueeze(1).to(dtype))

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
        """Attention with the bias; ConfigError when the layer has another number of heads."""
        if query.shape[1] != self.log_scale.shape[0]:
            raise ConfigError(
                f"position encoding 'kerple' has heads = {self.log_scale.shape[0]}, but an "
                f"attention layer has {query.shape[1]}; make them equal"
            )
        bias = self.bias(query_positions, key_positions)
        places = query_positions, key_positions
        y: Tensor = attention(query, key, value, *places, bias, scale=scale, window=window)
        return y

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Head counts that are no power of two, and that are one."""
        return [{"heads": 3}, {"heads": 2}]
