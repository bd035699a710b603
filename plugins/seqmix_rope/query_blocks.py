"""Queries in blocks, for encodings whose attention needs more than the queries themselves.

A bias on the logits is as large as the logits, and a factor that grows with the distance needs a
point of reference nearby: both are made for some queries at a time. A captured graph has one block,
since its number of queries is not known.

B batch, H query heads, S queries, T keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["in_query_blocks"]

_LOGITS = 1 << 24
"""Logits of a block, over all heads and rows: 64 MiB in float32."""


def in_query_blocks(
    attend: Callable[[slice], Tensor], query: Tensor, key: Tensor, longest: int | None = None
) -> Tensor:
    """``attend`` on blocks of the queries ``[B, H, S, K]``, joined along S.

    A block is small enough for its logits over ``key [B, G, T, K]`` to be held at once, and no
    longer than ``longest``.
    """
    if torch.compiler.is_compiling():
        return attend(slice(None))
    B, H, S, _ = query.shape
    size = max(1, min(S, longest or S, _LOGITS // max(1, B * H * key.shape[2])))
    if size >= S:
        return attend(slice(None))
    return torch.cat([attend(slice(i, min(i + size, S))) for i in range(0, S, size)], dim=2)
