"""Encodings that add something to the attention logits and leave queries and keys as they are.

B batch, H heads, S queries, T keys, K key size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveInt
from torch import Tensor

from seqmix.config import Strict
from seqmix.errors import ConfigError
from seqmix.ops.attention import attention
from seqmix.position import PositionEncoding
from seqmix_rope.query_blocks import in_query_blocks

__all__ = ["Biased", "BiasedConfig"]


class BiasedConfig(Strict):
    """``heads`` is the number of query heads H of every attention layer of the model."""

    heads: PositiveInt


class Biased(PositionEncoding):
    """A bias on the logits; subclasses say which.

    The bias of a long prompt is made for some queries at a time, so that no ``[H, S, T]`` is held
    at once. Keys are cached as they are.
    """

    built_for: ClassVar[Literal["head_dim", "width"]] = "width"
    attends = True

    def __init__(self, config: BiasedConfig, width: int) -> None:
        """Any ``width`` will do: there is nothing that it decides."""
        super().__init__()
        self.heads = config.heads
        self.table_dtype = torch.float32

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
        """Attention with :meth:`bias`; ConfigError when the layer has another number of heads."""
        if query.shape[1] != self.heads:
            raise ConfigError(
                f"position encoding '{type(self).__name__}' has heads = {self.heads}, but an "
                f"attention layer has {query.shape[1]}; make them equal"
            )

        def block(rows: slice) -> Tensor:
            places = query_positions[:, rows]
            bias = self.bias(places, key_positions)
            return attention(
                query[:, :, rows],
                key,
                value,
                places,
                key_positions,
                bias,
                scale=scale,
                window=window,
            )

        return in_query_blocks(block, query, key)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Head counts that are no power of two, and that are one."""
        return [{"heads": 3}, {"heads": 2}]

    def _apply(self, fn: Callable[[Tensor], Any], recurse: bool = True) -> Self:
        """Follow the model's conversion to or from float64; narrower types keep float32 biases."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        converted = fn(torch.zeros((), dtype=self.table_dtype, device="cpu")).dtype
        self.table_dtype = torch.float64 if converted == torch.float64 else torch.float32
        return self


def distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """How far a key lies before a query, int64 ``[B, S, T]``; 0 for keys that lie after it."""
    return (query_positions.unsqueeze(-1) - key_positions.unsqueeze(1)).clamp(min=0)
