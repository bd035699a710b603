"""``seqmix::rotary`` on the kernels.

B batch, H heads, S sequence, K head size, R rotated size.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.rotary import ROTARY, ROTARY_TABLES
from seqmix_triton.ops.layout import rows_together

__all__ = ["rotary_backward", "rotary_forward"]


def rotary_forward(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate ``x [B, H, S, K]`` by ``cos, sin [B, S, R/2]``."""
    return _turn(x, cos, sin, interleaved, backwards=False)


def rotary_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    interleaved: bool = False,
) -> list[Tensor | None]:
    """Gradients of x and, where wanted, of the tables."""
    x, cos, sin = operands
    turned = _turn(grads[0], cos, sin, interleaved, backwards=True) if needs[0] else None
    if not needs[1] and not needs[2]:
        return [turned, None, None]
    x, grad = rows_together(x), grads[0].contiguous()
    B, H, S, K = x.shape
    dcos = torch.empty_like(cos, memory_format=torch.contiguous_format)
    dsin = torch.empty_like(sin, memory_format=torch.contiguous_format)
    ROTARY_TABLES.launch(
        lambda tiles: (triton.cdiv(S, tiles["BLOCK_S"]), B),
        torch.promote_types(x.dtype, cos.dtype),
        {
            "grad": grad, "x": x, "dcos": dcos, "dsin": dsin, "S": S, "H": H,
            "x_b": x.stride(0), "x_h": x.stride(1), "x_s": x.stride(2),
        },
        {"K": K, "HALF": cos.shape[-1], "INTERLEAVED": interleaved},
    )  # fmt: skip
    return [turned, dcos, dsin]


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, *, backwards: bool) -> Tensor:
    x = rows_together(x)
    B, H, S, K = x.shape
    y = x.new_empty(B, H, S, K)
    ROTARY.launch(
        lambda tiles: (triton.cdiv(S, tiles["BLOCK_S"]), B * H),
        torch.promote_types(x.dtype, cos.dtype),
        {
            "x": x, "cos": cos.contiguous(), "sin": sin.contiguous(), "y": y, "S": S, "H": H,
            "x_b": x.stride(0), "x_h": x.stride(1), "x_s": x.stride(2),
        },
        {
            "K": K, "HALF": cos.shape[-1], "INTERLEAVED": interleaved, "BACKWARDS": backwards,
        },
    )  # fmt: skip
    return y
