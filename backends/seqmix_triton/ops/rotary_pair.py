"""Rotation of queries and keys together.

B batch, H query heads, G key heads, S queries, T keys, K head size, R rotated size.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from seqmix_triton.kernels.rotary_pair import ROTARY_PAIR
from seqmix_triton.ops.layout import rows_together

__all__ = ["rotary_pair", "rotary_pair_at"]


def rotary_pair(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate ``q [B, H, S, K]`` and ``k [B, G, S, K]`` by ``cos, sin [B, S, R/2]``."""
    cos, sin = cos.contiguous(), sin.contiguous()
    given = {"cos": cos, "sin": sin, "inv_freq": cos, "factor": cos, "freq_b": 0, "factor_b": 0}
    places = {"q_positions": cos, "k_positions": cos}
    constants = {"HALF": cos.shape[-1], "MADE": False, "SCALED": False}
    return _launch(q, k, given | places, constants, interleaved)


def rotary_pair_at(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    inv_freq: Tensor,
    factor: Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotate ``q [B, H, S, K]``, ``k [B, G, T, K]`` at int64 positions ``[B, S]``, ``[B, T]``.

    ``inv_freq`` is ``[R/2]``, or ``[B, 1, R/2]`` where each row has its own, in radians per token
    and float64; ``factor``, a number or ``[B, 1, 1]``, multiplies cos and sin. Positions below 0
    count as 0.
    """
    inv_freq = inv_freq.contiguous()
    given = {
        "cos": q, "sin": q, "inv_freq": inv_freq,
        "factor": inv_freq if factor is None else factor.contiguous(),
        "freq_b": inv_freq.stride(0) if _per_row(inv_freq) else 0,
        "factor_b": 1 if factor is not None and _per_row(factor) else 0,
        "q_positions": q_positions.contiguous(), "k_positions": k_positions.contiguous(),
    }  # fmt: skip
    constants = {"HALF": inv_freq.shape[-1], "MADE": True, "SCALED": factor is not None}
    return _launch(q, k, given, constants, interleaved)


def _per_row(x: Tensor) -> bool:
    return x.dim() == 3 and x.shape[0] > 1


def _launch(
    q: Tensor, k: Tensor, given: dict[str, Any], constants: dict[str, Any], interleaved: bool
) -> tuple[Tensor, Tensor]:
    q, k = rows_together(q), rows_together(k)
    (B, H, S, K), (G, T) = q.shape, k.shape[1:3]
    outs = q.new_empty(q.shape), k.new_empty(k.shape)
    given |= {"q": q, "k": k, "q_out": outs[0], "k_out": outs[1], "S": S, "T": T, "H": H, "G": G}
    for name, x in (("q", q), ("k", k)):
        given |= {f"{name}_{axis}": x.stride(i) for i, axis in enumerate("bhs")}
    ROTARY_PAIR.launch(
        lambda tiles: (
            triton.cdiv(S, tiles["BLOCK_S"]) + triton.cdiv(T, tiles["BLOCK_S"]),
            triton.cdiv(max(H, G), tiles["HEADS"]),
            B,
        ),
        q.dtype,
        given,
        {"K": K, "INTERLEAVED": interleaved, **constants},
    )
    return outs
