"""Rotation of pairs by given tables; its backward pass turns the other way.

B batch, H heads, S sequence, K head size, R rotated size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.op import op
from seqmix_ir.ops import Rotary

__all__ = ["rotary"]


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate ``x [B, H, S, K]`` by ``cos, sin [B, S, R/2]``; the last K - R entries pass through.

    Pairs are (i, i + R/2), or (2i, 2i + 1) when interleaved. Computed in the wider of the dtypes
    of ``x`` and the tables, returned in that of ``x``.
    """
    out: Tensor = _ROTARY(x, cos, sin, interleaved=interleaved)
    return out


def _forward(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    first, second, rest = _pairs(x.to(torch.promote_types(x.dtype, cos.dtype)), cos, interleaved)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    left = torch.addcmul(first * cos, second, sin, value=-1)
    right = torch.addcmul(second * cos, first, sin)
    return _join(left, right, rest, interleaved).to(x.dtype)


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    interleaved: bool = False,
) -> list[Tensor | None]:
    x, cos, sin = operands
    turned = _forward(grads[0], cos, -sin, interleaved=interleaved) if needs[0] else None
    if not needs[1] and not needs[2]:
        return [turned, None, None]
    wide = torch.promote_types(x.dtype, cos.dtype)
    first, second, _ = _pairs(x.to(wide), cos, interleaved)
    left, right, _ = _pairs(grads[0].to(wide), cos, interleaved)
    cos_grad = (left * first + right * second).sum(1).to(cos.dtype)
    sin_grad = (right * first - left * second).sum(1).to(sin.dtype)
    return [turned, cos_grad, sin_grad]


def _pairs(x: Tensor, cos: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Both halves of the pairs, and what is not rotated."""
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        return rotated[..., 0::2], rotated[..., 1::2], rest
    return rotated[..., :half], rotated[..., half:], rest


def _join(left: Tensor, right: Tensor, rest: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return torch.cat([torch.stack([left, right], -1).flatten(-2), rest], -1)
    return torch.cat([left, right, rest], -1)


_ROTARY = op(Rotary, eager=_forward, backward=_backward)
