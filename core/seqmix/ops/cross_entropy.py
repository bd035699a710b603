"""The loss of language models, without a float32 copy of narrow logits.

N places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqmix.op import op
from seqmix_ir.defn import OpDef
from seqmix_ir.ops import CrossEntropy
from seqmix_ir.ops.precision import wider_dtype
from seqmix_ir.types import TensorType

__all__ = ["cross_entropy"]

_PART = 1 << 22
"""Logits that are widened at once."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats ``[N]`` that ``logits [N, V]`` pay for ``targets [N]``, in float32 (float64 stays).

    Negative targets ask nothing: 0, and no gradient. A target from V on raises RuntimeError on a
    CPU; its loss is NaN where a kernel runs on a device.
    """
    loss: Tensor = _CROSS_ENTROPY(logits, targets)
    return loss


def _forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses, and the logs of the sums."""
    lse = logits.new_empty(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32))
    for rows in _parts(logits):
        lse[rows] = logits[rows].to(lse.dtype).logsumexp(1)
    picked = logits.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(targets >= 0, lse - picked, 0), lse


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """``(softmax(logits) - one_hot(target)) * grad``."""
    logits, targets = operands
    grad = torch.where(targets >= 0, grads[0], 0).unsqueeze(1)
    found = torch.empty_like(logits)
    for rows in _parts(logits):
        share = torch.exp(logits[rows] - outputs[1][rows].unsqueeze(1))
        asked = targets[rows].clamp(min=0).unsqueeze(1)
        share.scatter_add_(1, asked, -torch.ones_like(share[:, :1]))
        found[rows] = share * grad[rows]
    return [found, None]


def _parts(logits: Tensor) -> Iterator[slice]:
    """Stretches of rows; all of them where nothing has to be widened."""
    N, V = logits.shape
    narrow = logits.dtype in (torch.float16, torch.bfloat16)
    size = max(1, _PART // V) if narrow else max(1, N)
    return (slice(start, start + size) for start in range(0, N, size))


def _saved_type(defn: OpDef, logits: TensorType, targets: TensorType) -> TensorType:
    return TensorType(wider_dtype(logits.dtype), logits.shape[:1])


_CROSS_ENTROPY = op(
    CrossEntropy, eager=_forward, backward=_backward, saved={"log_sum_exp": _saved_type}
)
