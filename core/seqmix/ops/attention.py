"""Softmax attention over explicit positions, with its backward pass.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqmix.op import op
from seqmix_ir.ops import Attention
from seqmix_ir.types import TensorType

__all__ = ["attention", "attention_backward", "attention_forward"]

# The largest number of logits that are held at once: 64 MiB in float32.
_LOGITS = 1 << 24
# From this many key elements on, reading them once per group is worth two more copies.
_SHARED = 1 << 18
_SHOWN, _HIDDEN = torch.tensor(0.0), torch.tensor(float("-inf"))
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
    plain = fused and bias is None and causal and not window
    if plain and length == 1 and sinks is None and k.numel() < _SHARED:
        return _decode(q, k, v, query_positions, key_positions, scale)
    if plain and 1 < length == k.shape[2] and _counts_up(query_positions, key_positions):
        y, lse = _FUSED(q, k, v, 0.0, True, scale=scale)
        return _finish(y, lse, sinks)
    attend = _fused_chunk if fused else _plain_chunk
    step = _chunk_size(q, k, per_head=not fused or bias is not None)
    if step >= length:
        mask = _mask(query_positions, key_positions, causal, window)
        return _finish(*attend(q, k, v, mask, bias, scale), sinks)
    parts = []
    for rows in _chunks(q, step):
        mask = _mask(query_positions[:, rows], key_positions, causal, window)
        part = None if bias is None else bias[:, :, rows]
        parts.append(attend(q[:, :, rows], k, v, mask, part, scale))
    return _finish(torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts], 2), sinks)


def _decode(
    q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One query over few keys, where every call of torch counts."""
    visible = (key_positions >= 0) & (key_positions <= query_positions)
    mask = torch.where(visible, _SHOWN, _HIDDEN).view(q.shape[0], 1, 1, -1)
    mask = mask.double() if q.dtype == torch.float64 else mask
    y, lse = _FUSED(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    return y.contiguous(), lse.contiguous()


def _counts_up(query_positions: Tensor, key_positions: Tensor) -> bool:
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


def _chunk_size(q: Tensor, k: Tensor, *, per_head: bool) -> int:
    """How many queries have logits (or masks) that fit the budget."""
    return max(1, _LOGITS // max(1, q.shape[0] * k.shape[2] * (q.shape[1] if per_head else 1)))


def _chunks(q: Tensor, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, q.shape[2], step))


def _mask(query_positions: Tensor, key_positions: Tensor, causal: bool, window: int) -> Tensor:
    """True where a query sees a key: ``[B, S, T]``."""
    queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(1)
    # A causal query at -1 sees no key at >= 0, so padding queries need no mask of their own.
    visible = (keys >= 0) & (keys <= queries if causal else queries >= 0)
    return visible & (keys > queries - window) if window else visible


def _fused_chunk(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One chunk by torch's CPU flash kernel, which gives 0 and 0 for rows that see nothing."""
    if bias is None:
        # The kernel reads a mask of the wrong width as garbage, so it gets the one it computes in.
        mask = torch.where(visible, _SHOWN, _HIDDEN).unsqueeze(1).to(_wide(q))
    else:
        mask = torch.where(visible.unsqueeze(1), bias.to(_wide(q)), _HIDDEN)
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
    logits = _logits(q, k, visible, bias, scale)
    if k.shape[2] == 0:
        return q.new_zeros(B, H, S, v.shape[-1]), logits.new_zeros(B, H, S)
    lse = _finite(logits.logsumexp(-1))
    weights = torch.exp(logits - lse.unsqueeze(-1))
    y = torch.matmul(_grouped(weights, k.shape[1]), v.to(weights.dtype))
    return y.reshape(B, H, S, v.shape[-1]).to(q.dtype), lse


def _logits(q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Scaled logits ``[B, H, S, T]``, -inf where a query does not see a key."""
    B, H, S, _ = q.shape
    wide = _wide(q)
    scores = torch.matmul(_grouped(q.to(wide) * scale, k.shape[1]), k.to(wide).transpose(-1, -2))
    scores = scores.reshape(B, H, S, k.shape[2])
    if bias is not None:
        scores = scores + bias.to(wide)
    return scores.masked_fill(~visible.unsqueeze(1), float("-inf"))


def _finish(y: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Let the sinks take their share of the softmax."""
    if sinks is None:
        return y.contiguous(), lse.contiguous()
    sink = sinks.to(lse.dtype).view(1, -1, 1)
    share = torch.sigmoid(lse - sink).unsqueeze(-1)
    return (y * share).to(y.dtype).contiguous(), torch.logaddexp(lse, sink.expand_as(lse))


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
    wide, scale = _wide(q), scale or q.shape[-1] ** -0.5
    total = {n: torch.zeros_like(t, dtype=wide) for n, t in (("q", q), ("k", k), ("v", v))}
    bias_grad = torch.zeros_like(bias, dtype=wide) if bias is not None and needs[5] else None
    inner = (grads[0].to(wide) * y.to(wide)).sum(-1, keepdim=True)
    for rows in _chunks(q, _chunk_size(q, k, per_head=True)):
        mask = _mask(query_positions[:, rows], key_positions, causal, window)
        part = None if bias is None else bias[:, :, rows]
        logits = _logits(q[:, :, rows], k, mask, part, scale)
        weights = torch.exp(logits - _finite(lse[:, :, rows]).unsqueeze(-1))
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
    out = _grouped(grad[:, :, rows], G)
    weights_by_group = _grouped(weights, G)
    total["v"] += torch.matmul(weights_by_group.transpose(-1, -2), out)
    slope = weights * (torch.matmul(out, v.to(grad.dtype).transpose(-1, -2)).reshape(shape) - inner)
    by_group = _grouped(slope, G)
    total["q"][:, :, rows] = (torch.matmul(by_group, k.to(grad.dtype)) * scale).reshape(
        *shape[:3], q.shape[-1]
    )
    queries = _grouped(q[:, :, rows].to(grad.dtype), G)
    total["k"] += torch.matmul(by_group.transpose(-1, -2), queries) * scale
    return slope


def _sink_gradient(sinks: Tensor, lse: Tensor, inner: Tensor) -> Tensor:
    share = torch.exp(sinks.to(lse.dtype).view(1, -1, 1) - lse)
    return -(share * inner.squeeze(-1)).sum(dim=(0, 2)).to(sinks.dtype)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """``[B, H, S, N]`` as ``[B, G, H/G * S, N]``: the heads of a group as rows of one matrix."""
    B, H, S, N = x.shape
    return x.reshape(B, groups, H // groups * S, N)


def _finite(lse: Tensor) -> Tensor:
    """0 in place of -inf, so that a row that sees nothing has weights exp(-inf) = 0, not NaN."""
    return lse.masked_fill(lse == float("-inf"), 0.0)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _saved_type(defn: Attention, q: TensorType, *others: TensorType | None) -> TensorType:
    return TensorType("f64" if q.dtype == "f64" else "f32", q.shape[:3])


_ATTENTION = op(
    Attention,
    eager=attention_forward,
    backward=attention_backward,
    saved={"log_sum_exp": _saved_type},
)
