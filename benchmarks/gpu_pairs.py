"""The rotation of queries and keys together, as gpu.py measures it.

B batch, H query heads, G key heads, S tokens, K head size.
"""

from __future__ import annotations

import torch
from gpu_case import Case
from torch import Tensor

__all__ = ["rotary_pair"]


def rotary_pair(device: str, small: bool) -> Case:
    """With the tables made on the way; the peer is torch, which makes them too."""
    from seqmix_triton.ops.rotary_pair import rotary_pair_at

    B, H, G, S, K = (1, 4, 2, 10, 16) if small else (4, 32, 8, 4096, 128)
    q, k = (torch.randn(B, heads, S, K, device=device).to(torch.bfloat16) for heads in (H, G))
    positions = torch.arange(S, device=device).repeat(B, 1)
    rates = torch.arange(K // 2, device=device, dtype=torch.float64)
    inv_freq = 10000.0 ** (-2 * rates / K)

    def plain(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.to(torch.float64).unsqueeze(-1) * inv_freq
        cos, sin = (fn(angles).to(q.dtype).unsqueeze(1) for fn in (torch.cos, torch.sin))
        turned = []
        for x in (q, k):
            left, right = x.chunk(2, -1)
            turned.append(torch.cat([left * cos - right * sin, right * cos + left * sin], -1))
        return turned[0], turned[1]

    def ours(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotary_pair_at(q, k, positions, positions, inv_freq, None)

    return Case("rotary, q and k", (q, k), ours, plain, {"torch": plain}, trains=False)
