"""``seqmix::long_conv`` on the kernel; its gradients are convolutions too.

B batch, D channels, C filters per channel, S sequence, P past, T = P + S, L filter taps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix.op import bound_ops
from seqmix_triton.kernels.long_conv import LONG_CONV
from seqmix_triton.ops.layout import rows_together

__all__ = ["LONGEST", "long_conv_backward", "long_conv_forward"]

LONGEST = 4096
"""Samples, and taps, up to which products beat transforms: work grows with S * L here."""


def long_conv_forward(x: Tensor, filter: Tensor, history: Tensor | None) -> Tensor:
    """``y [B, C D, S]``; longer ones than :data:`LONGEST`, and single tokens, by the core."""
    S, past = x.shape[2], 0 if history is None else history.shape[2]
    if S == 1 or min(past + S, filter.shape[1]) > LONGEST:
        core: Any = bound_ops()["long_conv"].eager
        whole: Tensor = core(x, filter, history)
        return whole
    seq = _joined(x, history)
    y = x.new_empty(x.shape[0], filter.shape[0], S)
    return _convolve(seq, filter.unsqueeze(0), y, past)


def long_conv_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients of x, the filter and the history; what is too long goes by the core."""
    x, filter, history = operands
    if x is None or filter is None:
        raise TypeError("long_conv: x and filter are needed")
    seq = _joined(x, history)
    T, L = seq.shape[2], filter.shape[1]
    if T > LONGEST:
        backward = bound_ops()["long_conv"].backward
        if backward is None:
            raise TypeError("long_conv has no backward pass")
        return list(backward(grads, operands, outputs, needs))
    grad = grads[0].contiguous()
    dseq = _sequence_gradient(grad, filter, T, seq.shape[1]) if needs[0] or needs[2] else None
    dfilter = _filter_gradient(grad, seq, L).to(filter.dtype) if needs[1] else None
    past = T - x.shape[2]
    return [
        None if dseq is None else dseq[..., past:].to(x.dtype),
        dfilter,
        None if dseq is None or history is None else dseq[..., :past].to(history.dtype),
    ]


def _sequence_gradient(grad: Tensor, filter: Tensor, T: int, D: int) -> Tensor:
    """Backwards in time it is the convolution of the gradient: ``[B, D, T]``, in float32."""
    B, rows, _ = grad.shape
    turned = grad.new_empty(B, rows, T, dtype=_wide(grad))
    _convolve(grad.flip(2), filter.unsqueeze(0), turned, 0)
    return turned.flip(2).view(B, -1, D, T).sum(1)


def _filter_gradient(grad: Tensor, seq: Tensor, taps: int) -> Tensor:
    """The sequence turned around, convolved with the gradient, from its last sample on."""
    B, rows, S = grad.shape
    found = grad.new_empty(B, rows, taps, dtype=_wide(grad))
    _convolve(seq.flip(2), grad, found, S - 1)
    return found.sum(0)


def _convolve(x: Tensor, taps: Tensor, y: Tensor, past: int) -> Tensor:
    """Fill ``y``: outputs from sample ``past`` of ``x`` on; ``taps`` for each row, or for all."""
    x, taps = rows_together(x), rows_together(taps)
    B, rows, S = y.shape
    arguments = {
        "x": x, "taps": taps, "y": y,
        "x_b": x.stride(0), "x_d": x.stride(1),
        "taps_b": taps.stride(0) if len(taps) > 1 else 0, "taps_d": taps.stride(1),
        "y_b": y.stride(0), "y_d": y.stride(1),
        "D": x.shape[1], "P": past, "S": S, "T": x.shape[2], "L": taps.shape[2],
    }  # fmt: skip
    LONG_CONV.launch(
        lambda tiles: (triton.cdiv(S, tiles["BLOCK_M"] * tiles["BLOCK_N"]), rows, B),
        torch.promote_types(x.dtype, taps.dtype),
        arguments,
        {},
    )
    return y


def _joined(x: Tensor, history: Tensor | None) -> Tensor:
    return x if history is None or history.shape[2] == 0 else torch.cat([history, x], 2)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
