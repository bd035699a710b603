"""Attention whose rotary frequencies differ from query to query, in torch.

Neighbouring queries of equal frequencies share one rotation of the keys and the fused attention
kernel; the others each turn the keys for themselves, so many at a time that it stays in the cache.

B batch, H query heads, G key heads, M = H / G, S queries, N queries of a part, T keys, K key size,
V value size, R rotated size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from seqmix.op import op
from seqmix.ops.attention import attention_backward, attention_forward
from seqmix.ops.attention_chunks import wide_dtype
from seqmix.ops.rotary import rotary
from seqmix_ir.types import TensorType
from seqmix_rope.own_rotation import (
    attend_own,
    attend_own_backward,
    own_part_size,
    unit_turns,
)
from seqmix_rope.per_query_op import PerQueryAttention

__all__ = ["per_query_attention"]


def per_query_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    inv_freq: Tensor,
    magnitude: Tensor,
    *,
    scale: float = 0.0,
    window: int = 0,
    interleaved: bool = False,
) -> Tensor:
    """Attend from unrotated ``q [B, H, S, K]`` to unrotated ``k [B, G, T, K]``: ``[B, H, S, V]``.

    ``inv_freq [B, S, R/2]`` are the radians per token that each query uses for itself and for all
    keys, ``magnitude [B, S]`` its factor on the products of rotated entries, both float64.
    What it means is in :class:`~seqmix_rope.per_query_op.PerQueryAttention`.
    """
    out: Tensor = _PER_QUERY_ATTENTION(
        q, k, v, query_positions, key_positions, inv_freq, magnitude,
        scale=scale, window=window, interleaved=interleaved,
    )  # fmt: skip
    return out


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    inv_freq: Tensor,
    magnitude: Tensor,
    *,
    scale: float = 0.0,
    window: int = 0,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """The result, and the log of the softmax denominators ``[B, H, S]``."""
    scale = scale or q.shape[-1] ** -0.5
    found = []
    for rows, shared in _parts(inv_freq, magnitude, own_part_size(q, k)):
        part = (q[:, :, rows], k, v, query_positions[:, rows], key_positions)
        spectra = inv_freq[:, rows], magnitude[:, rows]
        options: dict[str, Any] = {"scale": scale, "window": window}
        if shared:
            turned = _turned(*part[:2], *part[3:], *spectra, interleaved=interleaved)
            y, lse = attention_forward(*turned, *part[2:], None, None, **options)
        else:
            y, lse = attend_own(*part, *spectra, interleaved=interleaved, **options)
        found.append((y, lse))
    if len(found) == 1:
        y, lse = found[0]
        return y.contiguous(), lse.contiguous()
    return torch.cat([y for y, _ in found], 2), torch.cat([lse for _, lse in found], 2)


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    scale: float = 0.0,
    window: int = 0,
    interleaved: bool = False,
) -> list[Tensor | None]:
    """Part by part as in the forward pass, whose rotations are done again."""
    q, k, v, query_positions, key_positions, inv_freq, magnitude = operands
    scale = scale or q.shape[-1] ** -0.5
    options: dict[str, Any] = {"scale": scale, "window": window, "interleaved": interleaved}
    apart = needs[5] or needs[6]
    wide = wide_dtype(q)
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    found: list[tuple[Tensor, ...]] = []
    for rows, shared in _parts(inv_freq, magnitude, own_part_size(q, k), apart=apart):
        part = (q[:, :, rows], k, v, query_positions[:, rows], key_positions)
        spectra = inv_freq[:, rows], magnitude[:, rows]
        results = (grads[0][:, :, rows], outputs[0][:, :, rows], outputs[1][:, :, rows])
        backward = _shared_backward if shared else attend_own_backward
        gained = backward(*part, *spectra, results=results, **options)
        found.append((gained[0], *gained[3:]))
        dk += gained[1]
        dv += gained[2]
    dq = torch.cat([part[0] for part in found], 2).to(q.dtype)
    total: list[Tensor | None] = [dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None, None]
    if apart:
        total[5:] = [torch.cat([part[i] for part in found], 1) for i in (1, 2)]
    return [g if need else None for g, need in zip(total, needs, strict=True)]


def _parts(
    inv_freq: Tensor, magnitude: Tensor, own: int, *, apart: bool = False
) -> Iterator[tuple[slice, bool]]:
    """Stretches of queries that share their frequencies in every row, and of those that do not.

    The latter are cut after ``own`` queries; with ``apart`` there are no others. This looks at the
    data, which an eager kernel may: the answer changes the speed only.
    """
    spectra = torch.cat([inv_freq, magnitude.unsqueeze(-1)], -1)
    equal = ((spectra[:, 1:] == spectra[:, :-1]).all(-1).all(0) & (not apart)).tolist()
    start, count = 0, len(equal) + 1
    while start < count:
        shared = start + 1 < count and equal[start]
        stop = start + 1
        while stop < count and (
            equal[stop - 1]
            if shared
            else stop - start < own and not (stop + 1 < count and equal[stop])
        ):
            stop += 1
        yield slice(start, stop), shared
        start = stop


def _turned(
    q: Tensor,
    k: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    inv_freq: Tensor,
    magnitude: Tensor,
    *,
    interleaved: bool,
    back: bool = False,
) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by the frequencies of the first query; or their gradients back."""
    wide = wide_dtype(q)
    first, factor = inv_freq[:, :1], magnitude[:, :1]
    out = []
    for x, positions, size in ((q, query_positions, None), (k, key_positions, factor)):
        turns = unit_turns(positions, first, torch.zeros_like(query_positions[:, :1]), size, wide)
        cos, sin = turns[:, 0].real.contiguous(), turns[:, 0].imag.contiguous()
        out.append(rotary(x, cos, -sin if back else sin, interleaved=interleaved))
    return out[0], out[1]


def _shared_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *places: Tensor,
    results: tuple[Tensor, Tensor, Tensor],
    interleaved: bool,
    scale: float,
    window: int,
) -> tuple[Tensor, ...]:
    """Gradients of q, k and v of a stretch that shares its frequencies."""
    grad, y, lse = results
    found = attention_backward(
        (grad,),
        (*_turned(q, k, *places, interleaved=interleaved), v, *places[:2], None, None),
        (y, lse),
        (True,) * 3 + (False,) * 4,
        scale=scale,
        window=window,
    )
    dq, dk, dv = (g for g in found[:3] if g is not None)
    dq, dk = _turned(dq, dk, *places, interleaved=interleaved, back=True)
    return dq, dk, dv


def _saved_type(defn: PerQueryAttention, q: TensorType, *others: TensorType) -> TensorType:
    return TensorType("f64" if q.dtype == "f64" else "f32", q.shape[:3])


_PER_QUERY_ATTENTION = op(
    PerQueryAttention, eager=_forward, backward=_backward, saved={"log_sum_exp": _saved_type}
)
