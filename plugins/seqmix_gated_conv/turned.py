"""Sequences turned in memory, from channels inside to time inside and back.

Sizes: B batch, M and N the two axes that change places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["turned"]

_SMALL = 1 << 14
"""Elements up to which a view will do: copying them is quick however they lie."""


def turned(x: Tensor) -> Tensor:
    """``[B, M, N]`` -> ``[B, N, M]``, with M inside in memory too; gradients are turned the same.

    torch copies a transposed view element by element, except a whole matrix, which it copies in
    square blocks, three times as fast. A captured graph gets the view: how to copy it is for the
    backend to say, and so it is on a GPU.
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= _SMALL:
        return x.transpose(1, 2)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _copied(x)
    y: Tensor = _Turned.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Turned(torch.autograd.Function):
    """The copy, whose gradient would else be a view that is read against the grain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _copied(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _copied(grads[0])


def _copied(x: Tensor) -> Tensor:
    B, M, _ = x.shape
    matrix = x.flatten(0, 1).t().contiguous()
    return matrix.view(-1, B, M).transpose(0, 1)
