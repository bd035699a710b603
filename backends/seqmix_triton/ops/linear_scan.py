"""``seqmix::linear_scan`` on the kernels.

B batch, S sequence, D channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.linear_scan import SCAN_BACKWARD, SCAN_FORWARD

__all__ = ["linear_scan_backward", "linear_scan_forward"]


def linear_scan_forward(
    a: Tensor, b: Tensor, initial: Tensor, *, semiring: str = "plus_times"
) -> tuple[Tensor, Tensor]:
    """All ``h [B, S, D]`` and the last of them ``[B, D]``."""
    h, last = a.new_empty(a.shape), initial.new_empty(initial.shape)
    _scan(a, b, initial, h, last, semiring)
    return h, last


def linear_scan_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    semiring: str = "plus_times",
) -> list[Tensor | None]:
    """Gradients of a, b and the initial state; that of max goes to the winner, of a tie to b."""
    a, b, initial = (t.contiguous() for t in operands)
    wide, h = torch.promote_types(a.dtype, torch.float32), outputs[0].contiguous()
    if h.dtype != wide:
        # What was rounded no longer tells who won.
        h = a.new_empty(a.shape, dtype=wide)
        _scan(a, b, initial, h, None, semiring)
    found = [t.new_empty(t.shape) for t in (a, b, initial)]
    arguments = {
        "a": a, "b": b, "initial": initial, "h": h, "grad": grads[0].contiguous(),
        "last_grad": grads[1].contiguous(), "da": found[0], "db": found[1], "dinitial": found[2],
        "S": a.shape[1], "D": a.shape[2],
    }  # fmt: skip
    SCAN_BACKWARD.launch(_grid(a), a.dtype, arguments, {"MAX_PLUS": semiring == "max_plus"})
    return list(found)


def _scan(
    a: Tensor, b: Tensor, initial: Tensor, h: Tensor, last: Tensor | None, semiring: str
) -> None:
    arguments = {
        "a": a.contiguous(), "b": b.contiguous(), "initial": initial.contiguous(), "h": h,
        "last": last, "S": a.shape[1], "D": a.shape[2],
    }  # fmt: skip
    SCAN_FORWARD.launch(_grid(a), a.dtype, arguments, {"MAX_PLUS": semiring == "max_plus"})


def _grid(a: Tensor) -> Any:
    B, _, D = a.shape
    return lambda tiles: (triton.cdiv(D, tiles["BLOCK_D"]), B)
