"""``max(x, 0)^2``, which RWKV has between the two projections of its channel mixing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["squared_relu"]


def squared_relu(x: Tensor) -> Tensor:
    """Of every element; in eager torch with one large tensor kept and one made per direction.

    A captured graph gets the two ops.
    """
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad):
        return torch.relu(x).square()
    y: Tensor = _SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return y


class _SquaredRelu(torch.autograd.Function):
    """The derivative ``2 max(x, 0)`` needs no mask of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.relu(x).square_()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        # Of clamp autograd keeps the argument, so what it made may be overwritten.
        return x.clamp(min=0).mul_(2).mul_(grads[0])
