"""The backward pass of softmax attention; the softmax is recomputed, never kept.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.ops.attention_blocks import blocks, part_of
from seqmix.ops.attention_chunks import (
    added_mask,
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
    for rows, slots in blocks(
        q, k, query_positions, key_positions, causal=causal, window=window, per_head=True
    ):
        mask = visible_pairs(query_positions[:, rows], key_positions[:, slots], causal, window)
        part = None if bias is None else part_of(bias, rows, slots)
        logits = masked_logits(q[:, :, rows], k[:, :, slots], mask, part, scale)
        weights = torch.exp(logits - finite(lse[:, :, rows]).unsqueeze(-1))
        some = (q[:, :, rows], k[:, :, slots], v[:, :, slots])
        into = (total["q"][:, :, rows], total["k"][:, :, slots], total["v"][:, :, slots])
        slope = _add_gradients(
            into, some, grads[0][:, :, rows].to(wide), inner[:, :, rows], weights, scale
        )
        if bias_grad is not None:
            place = part_of(bias_grad, rows, slots)
            place += slope.sum_to_size(place.shape)
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
    for rows, slots in blocks(
        q, k, query_positions, key_positions,
        causal=causal, window=window, per_head=bias is not None,
    ):  # fmt: skip
        visible = visible_pairs(query_positions[:, rows], key_positions[:, slots], causal, window)
        mask = added_mask(q, visible, None if bias is None else part_of(bias, rows, slots))
        some = (t[:, :, rows].contiguous() for t in (grad, q, y, lse))
        grad_rows, q_rows, y_rows, lse_rows = some
        found = _FUSED(
            grad_rows, q_rows, k[:, :, slots], v[:, :, slots], y_rows, lse_rows,
            0.0, False, attn_mask=mask, scale=scale,
        )  # fmt: skip
        parts.append(found[0])
        dk[:, :, slots] += found[1]
        dv[:, :, slots] += found[2]
    return torch.cat(parts, 2), dk.to(k.dtype), dv.to(v.dtype)


def _add_gradients(
    into: tuple[Tensor, Tensor, Tensor],
    operands: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    inner: Tensor,
    weights: Tensor,
    scale: float,
) -> Tensor:
    """Add a block's gradients of q, k and v to ``into``; returns the gradient of its logits."""
    q, k, v = operands
    dq, dk, dv = into
    G, shape = k.shape[1], weights.shape
    out = grouped(grad, G)
    dv += torch.matmul(grouped(weights, G).transpose(-1, -2), out)
    slope = weights * (torch.matmul(out, v.to(grad.dtype).transpose(-1, -2)).reshape(shape) - inner)
    by_group = grouped(slope, G)
    dq += (torch.matmul(by_group, k.to(grad.dtype)) * scale).reshape(dq.shape)
    queries = grouped(q.to(grad.dtype), G)
    dk += torch.matmul(by_group.transpose(-1, -2), queries) * scale
    return slope


def _sink_gradient(sinks: Tensor, lse: Tensor, inner: Tensor) -> Tensor:
    share = torch.exp(sinks.to(lse.dtype).view(1, -1, 1) - lse)
    return -(share * inner.squeeze(-1)).sum(dim=(0, 2)).to(sinks.dtype)
