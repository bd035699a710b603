"""``seqmix::cross_entropy`` on the kernels.

N places, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.cross_entropy import CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_FORWARD

__all__ = ["cross_entropy_backward", "cross_entropy_forward"]


def cross_entropy_forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses ``[N]`` and the logs of the sums ``[N]``; NaN for a target from V on."""
    N, V = logits.shape
    loss, lse = (
        logits.new_empty(N, dtype=torch.promote_types(logits.dtype, torch.float32))
        for _ in range(2)
    )
    CROSS_ENTROPY_FORWARD.launch(
        lambda tiles: (N,),
        logits.dtype,
        {"logits": logits.contiguous(), "targets": targets.contiguous(), "loss": loss, "lse": lse},
        {"V": V},
    )
    return loss, lse


def cross_entropy_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradient of the logits, in their dtype."""
    logits, targets = operands
    N, V = logits.shape
    dlogits = logits.new_empty(N, V)
    given = {
        "logits": logits.contiguous(),
        "targets": targets.contiguous(),
        "lse": outputs[1].contiguous(),
        "grad": grads[0].contiguous(),
        "dlogits": dlogits,
    }
    CROSS_ENTROPY_BACKWARD.launch(
        lambda tiles: (N, triton.cdiv(V, tiles["BLOCK_V"])), logits.dtype, given, {"V": V}
    )
    return [dlogits, None]
