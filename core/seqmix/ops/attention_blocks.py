"""Queries a block at a time, each with the keys that it can reach: what lies outside is skipped.

B batch, S queries, T keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqmix.ops.attention_chunks import chunk_size

__all__ = ["blocks", "part_of"]

# Below 64 queries torch's CPU kernel loses more than the narrower reach saves. A window is best
# served by blocks of its size, up to 256; without one, 512 were as fast as less or more.
_SMALLEST, _LARGEST, _CAUSAL = 64, 256, 512
_FAR = torch.iinfo(torch.int64).max


def blocks(
    q: Tensor,
    k: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    causal: bool,
    window: int,
    per_head: bool,
) -> Iterator[tuple[slice, slice]]:
    """The queries of ``q [B, H, S, K]`` block by block, and for each the slots of keys to look at.

    A block has as many logits (or masks) as the budget allows. On a CPU, where looking at the
    positions is cheap, it is also short enough that most of the slots can be left out: a window
    costs S times its size then, and the future half of a causal mask nothing. No order of the
    positions is relied on. Elsewhere the slots are always all of them.
    """
    S, T = q.shape[2], k.shape[2]
    step = chunk_size(q, k, per_head=per_head)
    looks = q.is_cpu and (causal or window > 0)
    if looks:
        step = min(step, max(_SMALLEST, min(_LARGEST, window)) if window else _CAUSAL)
    # No queries are one block of none.
    for start in range(0, max(S, 1), step):
        rows = slice(start, min(start + step, S))
        if looks and step < S:
            yield rows, _reach(query_positions[:, rows], key_positions, causal, window)
        else:
            yield rows, slice(0, T)


def part_of(bias: Tensor, rows: slice, slots: slice) -> Tensor:
    """The part of a bias, broadcastable to ``[B, H, S, T]``, for some queries and keys: a view."""
    if bias.dim() > 1 and bias.shape[-2] > 1:
        bias = bias[..., rows, :]
    return bias[..., slots] if bias.dim() > 0 and bias.shape[-1] > 1 else bias


def _reach(queries: Tensor, keys: Tensor, causal: bool, window: int) -> slice:
    """The slots from the first to the last key that some query of some row can see.

    At least one, since a kernel without keys does not say what it returns.
    """
    seen = keys >= 0
    if causal:
        seen &= keys <= queries.amax(1, keepdim=True)
    if window:
        seen &= keys > queries.masked_fill(queries < 0, _FAR).amin(1, keepdim=True) - window
    slots = seen.any(0).nonzero()
    if len(slots) == 0:
        return slice(0, 1)
    return slice(int(slots[0]), int(slots[-1]) + 1)
