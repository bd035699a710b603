"""The activation of minGRU's candidate in torch: the op, bound once, with its gradient."""

from __future__ import annotations

import seqmix
import torch
from torch import Tensor

from seqmix_mingru.positive_op import Positive

__all__ = ["positive"]

Tensors = tuple[Tensor, ...]


def positive(x: Tensor) -> Tensor:
    """``x + 1/2`` where ``x >= 0``, else ``sigmoid(x)``: one op in a captured graph."""
    y: Tensor = _POSITIVE(x)
    return y


def _forward(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.sigmoid(x.clamp(max=0))


def _backward(
    grads: Tensors, operands: Tensors, outputs: Tensors, needs: tuple[bool, ...]
) -> list[Tensor | None]:
    """The slope is 1 from 0 on, and that of the sigmoid below."""
    (grad,), (x,), (y,) = grads, operands, outputs
    return [torch.where(x >= 0, grad, grad * y * (1 - y))]


_POSITIVE = seqmix.op(Positive, eager=_forward, backward=_backward)
