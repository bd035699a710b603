"""Short depthwise causal convolution whose state is its tail.

B batch, D channels, S sequence, W kernel width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.op import op
from seqmix_ir.ops import CausalConv1d

__all__ = ["causal_conv1d"]


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, *, activation: str = ""
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of ``x [B, D, S]`` with its ``weight [D, W]``; returns y, new tail.

    ``tail [B, D, W - 1]`` holds the inputs before ``x``, oldest first; ``weight[:, -1]`` meets the
    current input. ``activation`` is ``""`` or ``"silu"``. Sums are float32 (float64 for float64).
    """
    y, last = _CAUSAL_CONV1D(x, weight, bias, tail, activation=activation)
    return y, last


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, *, activation: str = ""
) -> tuple[Tensor, Tensor]:
    joined = _joined(tail, x)
    y = _convolve(joined, weight, bias, x.shape[-1])
    y = torch.nn.functional.silu(y) if activation == "silu" else y
    return y.to(x.dtype), joined[..., x.shape[-1] :].contiguous().to(tail.dtype).clone()


def _joined(tail: Tensor, x: Tensor) -> Tensor:
    """``[B, D, W - 1 + S]``, laid out in memory as x is: turning it would cost more than the sums.

    A transposed view of ``[B, S, D]`` stays one, and so does all that is computed from it.
    """
    if _tokens_first(x):
        rows = torch.cat([tail.to(x.dtype).transpose(1, 2), x.transpose(1, 2)], dim=1)
        return rows.transpose(1, 2)
    return torch.cat([tail.to(x.dtype), x], dim=-1)


def _tokens_first(x: Tensor) -> bool:
    return x.stride(1) == 1 and x.stride(2) > 1


def _convolve(joined: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
    """The pre-activation ``[B, D, S]``, one shifted product per tap."""
    wide = torch.promote_types(joined.dtype, torch.float32)
    joined, weight = joined.to(wide), weight.to(wide)
    y = joined[..., :length] * weight[:, 0:1]
    for tap in range(1, weight.shape[1]):
        y.addcmul_(joined[..., tap : tap + length], weight[:, tap : tap + 1])
    return y if bias is None else y.add_(bias.to(wide).unsqueeze(-1))


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    activation: str = "",
) -> list[Tensor | None]:
    x, weight, tail = (t for i, t in enumerate(operands) if i != 2 and t is not None)
    bias, S, wide = operands[2], x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    joined = _joined(tail, x)
    grad = grads[0].to(wide)
    # Of one layout with x: sums over two layouts read one of them against the grain.
    grad = grad.mT.contiguous().mT if _tokens_first(x) else grad.contiguous()
    if activation == "silu":
        before = _convolve(joined, weight, bias, S)
        gate = torch.sigmoid(before)
        grad = grad * gate * (1 + before * (1 - gate))
    joined, taps = joined.to(wide), weight.to(wide)
    joined_grad = torch.zeros_like(joined)
    joined_grad[..., S:] += grads[1].to(wide)
    weight_grad, products = torch.empty_like(taps), torch.empty_like(grad)
    for tap in range(taps.shape[1]):
        joined_grad[..., tap : tap + S].addcmul_(grad, taps[:, tap : tap + 1])
        torch.mul(grad, joined[..., tap : tap + S], out=products)
        weight_grad[:, tap] = products.sum(dim=(0, 2))
    W = taps.shape[1]
    return [
        joined_grad[..., W - 1 :].to(x.dtype),
        weight_grad.to(weight.dtype),
        None if bias is None else grad.sum(dim=(0, 2)).to(bias.dtype),
        joined_grad[..., : W - 1].to(tail.dtype),
    ]


_CAUSAL_CONV1D = op(CausalConv1d, eager=_forward, backward=_backward)
