"""T5's relative bias: one learned number per head and range of distances (Raffel et al. 2020).

B batch, H heads, S queries, T keys, N buckets.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.config import INIT_STD
from seqmix_rope.biased import Biased, BiasedConfig, distances

__all__ = ["T5", "T5Config", "t5_buckets"]


class T5Config(BiasedConfig):
    """``num_buckets`` ranges of distances; all from ``max_distance`` on share the last one."""

    num_buckets: int = Field(default=32, ge=2)
    max_distance: PositiveInt = 128
    init_std: float = Field(default=INIT_STD, gt=0)

    @model_validator(mode="after")
    def _ranges_grow(self) -> Self:
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"max_distance = {self.max_distance} should be above num_buckets / 2 = "
                f"{self.num_buckets // 2}: nearer distances have a bucket each"
            )
        return self


class T5(Biased):
    """A learned bias ``weight[bucket(t - s), h]`` on the logit of query t and key s, causal.

    Half of the buckets are for one distance each, the others cover ranges that grow
    logarithmically up to ``max_distance`` (section 2.1, "relative position embeddings"). One table
    serves all layers. T5 itself does not divide its logits by sqrt(K): give the attention a scale
    of 1 for that.
    """

    Config = T5Config

    def __init__(self, config: T5Config, width: int) -> None:
        """A table ``weight [N, H]``."""
        super().__init__(config, width)
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_buckets, config.heads))
        nn.init.normal_(self.weight, std=config.init_std)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """``[B, H, S, T]`` in the table's type."""
        c = self.config
        found = t5_buckets(c.num_buckets, c.max_distance)
        buckets = torch.tensor(found, dtype=torch.int64, device=query_positions.device)
        by_distance = F.embedding(buckets, self.weight)
        near = distances(query_positions, key_positions).clamp(max=c.max_distance)
        return F.embedding(near, by_distance).permute(0, 3, 1, 2)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Few buckets, so that short sequences reach the ranges and the last one."""
        one, other = super().examples()
        small = {"num_buckets": 6, "max_distance": 7, "init_std": 1.0}
        return [{**one, **small}, {**other, "init_std": 1.0}]


def t5_buckets(num_buckets: int, max_distance: int) -> list[int]:
    """The bucket of the distances 0 to ``max_distance``; the last one is that of all beyond.

    With e = N // 2, distance d below e has bucket d, others have ``e + floor(log(d / e) /
    log(max_distance / e) * (N - e))``, at most N - 1. Whole results are whole here, where float32
    logarithms may fall just below.
    """
    exact = num_buckets // 2
    growth = math.log(max_distance / exact)
    found = list(range(exact))
    for distance in range(exact, max_distance + 1):
        step = math.log(distance / exact) / growth * (num_buckets - exact)
        found.append(min(exact + math.floor(step + 1e-9), num_buckets - 1))
    return found
