"""Which keys a query sees, and how many queries are looked at at once: both ways of attention.

B batch, H query heads, G key heads, S queries, T keys, K key size.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "added_mask",
    "chunk_size",
    "counts_up",
    "finite",
    "grouped",
    "masked_logits",
    "rows_together",
    "visible_pairs",
    "wide_dtype",
]

# The largest number of logits that are held at once: 64 MiB in float32.
_LOGITS = 1 << 24
# On the CPU even where this module is first imported while a model is made on the meta device.
_SHOWN, _HIDDEN = (torch.tensor(x, device="cpu") for x in (0.0, float("-inf")))


def counts_up(query_positions: Tensor, key_positions: Tensor) -> bool:
    """Whether the positions are those of whole sequences: the kernel needs no mask then.

    This looks at the data, which an eager kernel may: the answer changes the speed only.
    """
    first = query_positions[:, :1]
    count = torch.arange(query_positions.shape[1], device=first.device)
    return bool(
        torch.equal(query_positions, key_positions)
        and (first >= 0).all()
        and (query_positions - first == count).all()
    )


def chunk_size(q: Tensor, k: Tensor, *, per_head: bool) -> int:
    """How many queries have logits (or masks) that fit the budget."""
    return max(1, _LOGITS // max(1, q.shape[0] * k.shape[2] * (q.shape[1] if per_head else 1)))


def rows_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with the last axis dense in memory, copied where it is not.

    torch's CPU kernel takes that for granted, and reads elsewhere without a word.
    """
    return tuple(t if t.stride(-1) == 1 else t.contiguous() for t in tensors)


def visible_pairs(
    query_positions: Tensor, key_positions: Tensor, causal: bool, window: int
) -> Tensor:
    """True where a query sees a key: ``[B, S, T]``."""
    queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(1)
    # A causal query at -1 sees no key at >= 0, so padding queries need no mask of their own.
    visible = (keys >= 0) & (keys <= queries if causal else queries >= 0)
    return visible & (keys > queries - window) if window else visible


def added_mask(q: Tensor, visible: Tensor, bias: Tensor | None) -> Tensor:
    """What a fused kernel adds to the logits ``[B, 1 or H, S, T]``: the bias, or 0, and -inf.

    The kernel reads a mask of the wrong width as garbage, so it gets the one it computes in.
    """
    if bias is None:
        return torch.where(visible, _SHOWN, _HIDDEN).unsqueeze(1).to(wide_dtype(q))
    return torch.where(visible.unsqueeze(1), bias.to(wide_dtype(q)), _HIDDEN)


def masked_logits(
    q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Scaled logits ``[B, H, S, T]``, -inf where a query does not see a key."""
    B, H, S, _ = q.shape
    wide = wide_dtype(q)
    scores = torch.matmul(grouped(q.to(wide) * scale, k.shape[1]), k.to(wide).transpose(-1, -2))
    scores = scores.reshape(B, H, S, k.shape[2])
    if bias is not None:
        scores = scores + bias.to(wide)
    return scores.masked_fill(~visible.unsqueeze(1), float("-inf"))


def grouped(x: Tensor, groups: int) -> Tensor:
    """``[B, H, S, N]`` as ``[B, G, H/G * S, N]``: the heads of a group as rows of one matrix."""
    B, H, S, N = x.shape
    return x.reshape(B, groups, H // groups * S, N)


def finite(lse: Tensor) -> Tensor:
    """0 in place of -inf, so that a row that sees nothing has weights exp(-inf) = 0, not NaN."""
    return lse.masked_fill(lse == float("-inf"), 0.0)


def wide_dtype(x: Tensor) -> torch.dtype:
    """What softmax and sums are computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
