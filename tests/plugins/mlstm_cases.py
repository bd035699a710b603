"""Operands of the mLSTM cell, and its equations written down once more, token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["VARIANTS", "operands", "recurrence", "worst"]

VARIANTS: dict[str, dict[str, Any]] = {
    "xlstm_large": {"soft_cap": 15.0},
    "xlstm": {"scale_on": "k"},
    "big_eps": {"eps": 0.3},
    "sigmoid": {"input": "sigmoid", "soft_cap": 2.0},
    "plain": {"input": "sigmoid", "normalize": False, "scale_on": "k"},
}


def operands(
    B: int,
    H: int,
    S: int,
    K: int,
    V: int,
    dtype: torch.dtype = torch.float64,
    past: bool = True,
) -> list[Tensor]:
    """In the order of the op; forget gates around 2."""
    torch.manual_seed(S)
    q, k, v = (torch.randn(B, H, S, n, dtype=dtype) for n in (K, K, V))
    i, f = 2 * torch.randn(B, H, S, dtype=dtype), 2 + torch.randn(B, H, S, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    state, m = torch.randn(B, H, K, V + 1, dtype=wide), torch.randn(B, H, dtype=wide)
    return [q, k, v, i, f, state * past, m * past]


def recurrence(
    q, k, v, i, f, state, m, *, scale_on="q", input="exp", eps=1e-6, soft_cap=0.0, normalize=True
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 19 to 27 of the xLSTM paper, with the stabiliser of its appendix A.3."""
    if soft_cap:
        i, f = (soft_cap * torch.tanh(gate / soft_cap) for gate in (i, f))
    root, hs = q.shape[3] ** -0.5, []
    for t in range(q.shape[2]):
        query, key = q[:, :, t], k[:, :, t]
        query, key = (query * root, key) if scale_on == "q" else (query, key * root)
        log_f, log_i = logsigmoid(f[:, :, t]), i[:, :, t]
        if input == "exp":
            new = torch.maximum(log_f + m, log_i)
            keep, add, m = torch.exp(log_f + m - new), torch.exp(log_i - new), new
            floor, more = torch.exp(-m), eps
        else:
            keep, add = torch.sigmoid(f[:, :, t]), torch.sigmoid(log_i)
            floor, more = torch.ones_like(keep), 0.0
        value = torch.cat([v[:, :, t], torch.ones_like(v[:, :, t, :1])], -1)
        added = torch.einsum("bhk,bhv->bhkv", key * add[..., None], value)
        state = keep[..., None, None] * state + added
        y = torch.einsum("bhk,bhkv->bhv", query, state)
        below = torch.maximum(y[..., -1].abs(), floor) + more
        hs.append(y[..., :-1] / (below[..., None] if normalize else 1.0))
    return torch.stack(hs, 2), state, m


def worst(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    """The largest difference of h and of ``state * exp(m)``, each relative to its largest value.

    m itself may drift by rounding.
    """
    errors = []
    for one, other in zip(_meaning(found), _meaning(wanted), strict=True):
        errors.append(float((one - other).abs().max() / other.abs().max().clamp_min(1e-300)))
    return max(errors)


def _meaning(results: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    h, state, m = (x.detach().double() for x in results)
    return h, state * m.exp()[..., None, None]
