"""The backward pass of softmax attention; the softmax is recomputed, never kept.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.ops.attention_chunks import (
    added_mask,
    chunk_size,
    chunks,
    counts_up,
    finite,
    grouped,
    masked_logits,
    rows_together,
    visible_pairs,
    wide_dtype,
)

__all__ = ["attention_backward"]

_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attention_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    scale: float = 0.0,
    causal: bool = True,
    window: int = 0,
) -> list[Tensor | None]:
    """Gradients of q, k, v, bias and sinks; the softmax is recomputed chunk by chunk."""
    q, k, v, query_positions, key_positions = (t for t in operands[:5] if t is not None)
    bias, sinks = operands[5:]
    y, lse = outputs
    wide, scale = wide_dtype(q), scale or q.shape[-1] ** -0.5
    bias_grad = torch.zeros_like(bias, dtype=wide) if bias is not None and needs[5] else None
    inner = (grads[0].to(wide) * y.to(wide)).sum(-1, keepdim=True)
    if bias_grad is None and q.is_cpu and v.shape[-1] == q.shape[-1] and q.numel() and k.numel():
        given = (q, k, v, query_positions, key_positions, bias)
        found = _fused_gradients(given, grads[0], y, finite(lse), scale, causal, window)
        sink_grad = None if sinks is None else _sink_gradient(sinks, lse, inner)
        return [*found, None, None, None, sink_grad]
    total = {n: torch.zeros_like(t, dtype=wide) for n, t in (("q", q), ("k", k), ("v", v))}
    for rows in chunks(q, chunk_size(q, k, per_head=True)):
        mask = visible_pairs(query_positions[:, rows], key_positions, causal, window)
        part = None if bias is None else bias[:, :, rows]
        logits = masked_logits(q[:, :, rows], k, mask, part, scale)
        weights = torch.exp(logits - finite(lse[:, :, rows]).unsqueeze(-1))
        slope = _chunk_gradients(
            total, rows, q, k, v, grads[0].to(wide), inner[:, :, rows], weights, scale
        )
        if bias_grad is not None:
            bias_grad[:, :, rows] += slope.sum_to_size(bias_grad[:, :, rows].shape)
    return [
        total["q"].to(q.dtype), total["k"].to(k.dtype), total["v"].to(v.dtype), None, None,
        None if bias is None or bias_grad is None else bias_grad.to(bias.dtype),
        None if sinks is None else _sink_gradient(sinks, lse, inner),
    ]  # fmt: skip


def _fused_gradients(
    operands: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None],
    grad: Tensor,
    y: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of q, k and v by torch's CPU flash kernel, which holds no logits.

    With sinks ``y`` and ``lse`` include their share, which is all that the kernel has to know.
    """
    query_positions, key_positions, bias = operands[3:]
    q, k, v = rows_together(*operands[:3])
    grad, y = grad.contiguous(), y.contiguous()
    plain = bias is None and causal and not window and q.shape[2] == k.shape[2]
    if plain and counts_up(query_positions, key_positions):
        dq, dk, dv = _FUSED(grad, q, k, v, y, lse, 0.0, True, scale=scale)
        return dq, dk, dv
    wide, parts = wide_dtype(q), []
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    for rows in chunks(q, chunk_size(q, k, per_head=bias is not None)):
        visible = visible_pairs(query_positions[:, rows], key_positions, causal, window)
        mask = added_mask(q, visible, None if bias is None else bias[:, :, rows])
        some = (t[:, :, rows].contiguous() for t in (grad, q, y, lse))
        grad_rows, q_rows, y_rows, lse_rows = some
        found = _FUSED(
            grad_rows, q_rows, k, v, y_rows, lse_rows, 0.0, False, attn_mask=mask, scale=scale
        )
        parts.append(found[0])
        dk, dv = dk + found[1], dv + found[2]
    return torch.cat(parts, 2), dk.to(k.dtype), dv.to(v.dtype)


def _chunk_gradients(
    total: dict[str, Tensor],
    rows: slice,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    inner: Tensor,
    weights: Tensor,
    scale: float,
) -> Tensor:
    """Add one chunk of queries to the totals; returns the gradient of its logits."""
    G, shape = k.shape[1], weights.shape
    out = grouped(grad[:, :, rows], G)
    weights_by_group = grouped(weights, G)
    total["v"] += torch.matmul(weights_by_group.transpose(-1, -2), out)
    slope = weights * (torch.matmul(out, v.to(grad.dtype).transpose(-1, -2)).reshape(shape) - inner)
    by_group = grouped(slope, G)
    total["q"][:, :, rows] = (torch.matmul(by_group, k.to(grad.dtype)) * scale).reshape(
        *shape[:3], q.shape[-1]
    )
    queries = grouped(q[:, :, rows].to(grad.dtype), G)
    total["k"] += torch.matmul(by_group.transpose(-1, -2), queries) * scale
    return slope


def _sink_gradient(sinks: Tensor, lse: Tensor, inner: Tensor) -> Tensor:
    share = torch.exp(sinks.to(lse.dtype).view(1, -1, 1) - lse)
    return -(share * inner.squeeze(-1)).sum(dim=(0, 2)).to(sinks.dtype)
