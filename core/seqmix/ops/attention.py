"""Softmax attention over explicit positions.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.op import op
from seqmix.ops.attention_blocks import blocks, part_of
from seqmix.ops.attention_chunks import (
    added_mask,
    counts_up,
    finite,
    grouped,
    masked_logits,
    rows_together,
    visible_pairs,
)
from seqmix.ops.attention_gradient import attention_backward
from seqmix_ir.ops import Attention
from seqmix_ir.types import TensorType

__all__ = ["attention", "attention_backward", "attention_forward"]

# From this many key elements on, reading them once per group is worth two more copies.
_SHARED = 1 << 18
# On the CPU even where this module is first imported while a model is made on the meta device.
_SHOWN, _HIDDEN = (torch.tensor(x, device="cpu") for x in (0.0, float("-inf")))
_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float = 0.0,
    causal: bool = True,
    window: int = 0,
) -> Tensor:
    """Attend from ``q [B, H, S, K]`` to ``k [B, G, T, K]``, ``v [B, G, T, V]``: ``[B, H, S, V]``.

    A query at position p sees the keys at positions 0 <= p' (<= p if causal, > p - window if
    window is not 0); positions of -1 are padding on either side. ``scale`` 0 means 1 / sqrt(K).
    ``bias [B or 1, H or 1, S, T]`` is added to the logits, ``sinks [H]`` are logits without value.
    A query that sees nothing gives 0. Softmax and sums are float32 (float64 for float64).
    """
    out: Tensor = _ATTENTION(
        q, k, v, query_positions, key_positions, bias, sinks,
        scale=scale, causal=causal, window=window,
    )  # fmt: skip
    return out


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    *,
    scale: float = 0.0,
    causal: bool = True,
    window: int = 0,
) -> tuple[Tensor, Tensor]:
    """The result, and the log of the softmax denominator ``[B, H, S]`` (0 if it sees nothing)."""
    K, length = q.shape[-1], q.shape[2]
    scale = scale or K**-0.5
    fused = q.is_cpu and v.shape[-1] == K and k.shape[2] > 0
    if fused:
        q, k, v = rows_together(q, k, v)
    plain = fused and bias is None and causal and not window
    if plain and length == 1 and sinks is None and k.numel() < _SHARED:
        return _decode(q, k, v, query_positions, key_positions, scale)
    if plain and 1 < length == k.shape[2] and counts_up(query_positions, key_positions):
        y, lse = _FUSED(q, k, v, 0.0, True, scale=scale)
        return _finish(y, lse, sinks)
    attend = _fused_chunk if fused else _plain_chunk
    parts = []
    for rows, slots in blocks(
        q, k, query_positions, key_positions,
        causal=causal, window=window, per_head=not fused or bias is not None,
    ):  # fmt: skip
        mask = visible_pairs(query_positions[:, rows], key_positions[:, slots], causal, window)
        part = None if bias is None else part_of(bias, rows, slots)
        parts.append(attend(q[:, :, rows], k[:, :, slots], v[:, :, slots], mask, part, scale))
    y, lse = parts[0] if len(parts) == 1 else (torch.cat(t, 2) for t in zip(*parts, strict=True))
    return _finish(y, lse, sinks)


def _decode(
    q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One query over few keys, where every call of torch counts."""
    visible = (key_positions >= 0) & (key_positions <= query_positions)
    mask = torch.where(visible, _SHOWN, _HIDDEN).view(q.shape[0], 1, 1, -1)
    mask = mask.double() if q.dtype == torch.float64 else mask
    y, lse = _FUSED(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    return y.contiguous(), lse.contiguous()


def _fused_chunk(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One chunk by torch's CPU flash kernel, which gives 0 and 0 for rows that see nothing."""
    mask = added_mask(q, visible, bias)
    if q.shape[2] == 1 and q.shape[1] != k.shape[1] and k.numel() >= _SHARED:
        return _fused_group(q, k, v, mask, scale)
    y, lse = _FUSED(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    return y, lse


def _fused_group(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One query per head: as rows of one head the queries of a group read their keys once."""
    B, H, _, K = q.shape
    G, T = k.shape[1:3]
    rows = H // G
    if mask.shape[1] > 1:
        mask = mask.expand(B, H, 1, T).reshape(B, G, rows, T)
    mask = mask.expand(B, mask.shape[1], rows, T)
    y, lse = _FUSED(q.reshape(B, G, rows, K), k, v, 0.0, False, attn_mask=mask, scale=scale)
    return y.reshape(B, H, 1, K), lse.reshape(B, H, 1)


def _plain_chunk(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One chunk written out, on any device and for V other than K."""
    B, H, S, _ = q.shape
    logits = masked_logits(q, k, visible, bias, scale)
    if k.shape[2] == 0:
        return q.new_zeros(B, H, S, v.shape[-1]), logits.new_zeros(B, H, S)
    lse = finite(logits.logsumexp(-1))
    weights = torch.exp(logits - lse.unsqueeze(-1))
    y = torch.matmul(grouped(weights, k.shape[1]), v.to(weights.dtype))
    return y.reshape(B, H, S, v.shape[-1]).to(q.dtype), lse


def _finish(y: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Let the sinks take their share of the softmax."""
    if sinks is None:
        return y.contiguous(), lse.contiguous()
    sink = sinks.to(lse.dtype).view(1, -1, 1)
    share = torch.sigmoid(lse - sink).unsqueeze(-1)
    return (y * share).to(y.dtype).contiguous(), torch.logaddexp(lse, sink.expand_as(lse))


def _saved_type(defn: Attention, q: TensorType, *others: TensorType | None) -> TensorType:
    return TensorType("f64" if q.dtype == "f64" else "f32", q.shape[:3])


_ATTENTION = op(
    Attention,
    eager=attention_forward,
    backward=attention_backward,
    saved={"log_sum_exp": _saved_type},
)
