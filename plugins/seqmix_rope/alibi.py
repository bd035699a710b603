"""ALiBi: a penalty on the logits that is linear in the distance (Press et al. 2022, 2108.12409).

B batch, H heads, S queries, T keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from seqmix_rope.biased import Biased, BiasedConfig, distances

__all__ = ["Alibi", "AlibiConfig", "alibi_slopes"]


class AlibiConfig(BiasedConfig):
    """The flattest of a power of two of heads has the slope ``2^-max_exponent``."""

    max_exponent: float = Field(default=8.0, gt=0)


class Alibi(Biased):
    """Attention with linear biases: ``-m_h (t - s)`` on the logit of query t and key s (section 3).

    The slopes m of the heads are :func:`alibi_slopes`; nothing is learned and there is no last
    position. As the authors do, the bias is not multiplied by ``1/sqrt(K)``.
    """

    Config = AlibiConfig

    def __init__(self, config: AlibiConfig, width: int) -> None:
        """Compute the slopes."""
        super().__init__(config, width)
        self.slopes = alibi_slopes(config.heads, config.max_exponent)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """``[B, H, S, T]`` in float32, or float64 in a float64 model."""
        slopes = torch.tensor(self.slopes, dtype=self.table_dtype, device=query_positions.device)
        far = distances(query_positions, key_positions).to(self.table_dtype)
        return far.unsqueeze(1) * -slopes.view(1, -1, 1, 1)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Steep slopes, so that short sequences feel them."""
        one, other = super().examples()
        return [one, {**other, "max_exponent": 1.5}]


def alibi_slopes(heads: int, max_exponent: float = 8.0) -> list[float]:
    """The slopes of so many heads, as the authors' code has them.

    For a power of two n they are ``2^(-8 i / n)``, i = 1 .. n. Otherwise those of the power of two
    below, then as many as are missing of every other one of the power of two above.
    """
    below = 1 << int(math.log2(heads))
    slopes = _geometric(below, max_exponent)
    return slopes + _geometric(2 * below, max_exponent)[0::2][: heads - below]


def _geometric(heads: int, max_exponent: float) -> list[float]:
    return [2.0 ** (-max_exponent * i / heads) for i in range(1, heads + 1)]
