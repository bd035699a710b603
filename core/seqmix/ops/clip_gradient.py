"""Identity whose gradient is clipped."""

from __future__ import annotations

from torch import Tensor

from seqmix.op import op
from seqmix_ir.ops import ClipGradient

__all__ = ["clip_gradient"]


def clip_gradient(x: Tensor, limit: float) -> Tensor:
    """``x`` itself; what flows back through it is clipped to ``[-limit, limit]``."""
    out: Tensor = _CLIP_GRADIENT(x, limit=limit)
    return out


def _forward(x: Tensor, *, limit: float) -> Tensor:
    # An op may not return its operand, so this is a copy.
    return x.clone()


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    limit: float,
) -> list[Tensor | None]:
    return [grads[0].clamp(-limit, limit)]


_CLIP_GRADIENT = op(ClipGradient, eager=_forward, backward=_backward)
