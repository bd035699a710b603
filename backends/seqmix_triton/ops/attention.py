"""``seqmix::attention`` on the kernels.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.attention import ATTENTION
from seqmix_triton.kernels.attention_backward import ATTENTION_KEYS, ATTENTION_QUERIES
from seqmix_triton.ops.layout import rows_together

__all__ = ["attention_backward", "attention_forward"]

_FEW = 16
"""Rows of a group up to which one small tile holds them: decoding."""


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
    """The result ``[B, H, S, V]`` and the log of the softmax denominator ``[B, H, S]``."""
    given, constants = _given(
        (q, k, v, query_positions, key_positions, bias), scale, causal, window
    )
    B, H, S, _ = q.shape
    G, rows = k.shape[1], S * constants["R"]
    y = q.new_empty(B, H, S, v.shape[-1])
    lse = q.new_empty(B, H, S, dtype=torch.promote_types(q.dtype, torch.float32))
    given |= {"sinks": None if sinks is None else sinks.contiguous(), "y": y, "lse": lse}
    ATTENTION.launch(
        lambda tiles: (triton.cdiv(rows, tiles["BLOCK_M"]), B * G),
        q.dtype,
        given,
        {**constants, "FEW": rows <= _FEW},
    )
    return y, lse


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
    """Gradients of q, k, v, bias and sinks."""
    q, k, v = (t for t in operands[:3] if t is not None)
    bias, sinks = operands[5:]
    given, constants = _given(operands[:6], scale, causal, window)
    (B, H, S, _), (G, T) = q.shape, k.shape[1:3]
    y, lse = outputs
    given |= {
        "grad": grads[0].contiguous(),
        "lse": lse.contiguous(),
        "inner": torch.empty_like(lse),
    }
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    # Logits that are not seen are never written.
    dlogits = lse.new_zeros(B, H, S, T) if bias is not None and needs[5] else None
    ATTENTION_QUERIES.launch(
        lambda tiles: (triton.cdiv(S * constants["R"], tiles["BLOCK_M"]), B * G),
        q.dtype,
        {**given, "y": y.contiguous(), "dq": dq, "dbias": dlogits},
        constants,
    )
    if needs[1] or needs[2]:
        ATTENTION_KEYS.launch(
            lambda tiles: (triton.cdiv(T, tiles["BLOCK_N"]), B * G),
            q.dtype,
            {**given, "dk": dk, "dv": dv},
            constants,
        )
    dbias = None
    if bias is not None and dlogits is not None:
        dbias = dlogits.sum_to_size(bias.shape).to(bias.dtype)
    dsinks = None if sinks is None else _sink_gradient(sinks, lse, given["inner"])
    return [dq, dk, dv, None, None, dbias, dsinks]


def _sink_gradient(sinks: Tensor, lse: Tensor, inner: Tensor) -> Tensor:
    share = torch.exp(sinks.to(lse.dtype).view(1, -1, 1) - lse)
    return -(share * inner).sum(dim=(0, 2)).to(sinks.dtype)


def _given(
    operands: tuple[Tensor | None, ...], scale: float, causal: bool, window: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and constants that forward and backward share."""
    *present, bias = operands
    q, k, v, query_positions, key_positions = (t for t in present if t is not None)
    q, k, v = rows_together(q), rows_together(k), rows_together(v)
    given: dict[str, Any] = {"q": q, "k": k, "v": v}
    for name, x in (("q", q), ("k", k), ("v", v)):
        given |= {f"{name}_{axis}": x.stride(i) for i, axis in enumerate("bhs")}
    given |= {
        "query_positions": query_positions.contiguous(),
        "key_positions": key_positions.contiguous(),
        "bias": q, "bias_b": 0, "bias_h": 0, "S": q.shape[2], "T": k.shape[2], "G": k.shape[1],
    }  # fmt: skip
    if bias is not None:
        bias = bias.contiguous()
        per_head, per_row = (bias.stride(axis) if bias.shape[axis] > 1 else 0 for axis in (1, 0))
        given |= {"bias": bias, "bias_b": per_row, "bias_h": per_head}
    K = q.shape[-1]
    constants = {
        "K": K, "V": v.shape[-1], "R": q.shape[1] // k.shape[1], "SCALE": scale or K**-0.5,
        "CAUSAL": causal, "WINDOW": window, "HAS_BIAS": bias is not None,
    }  # fmt: skip
    return given, constants
