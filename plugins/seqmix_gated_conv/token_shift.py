"""Token shift: every token beside the one before it, across pieces of a sequence and padding.

Sizes: B batch, S sequence, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["blend", "shift_tokens"]


def shift_tokens(x: Tensor, last: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The real token before each of ``x [B, S, D]``, and the last real one, ``[B, D]``.

    ``last [B, D]`` is the last real token before x, zeros where there is none. Tokens that are not
    ``valid [B, S]`` (None: all are) are passed over; beside one of them stands the real token
    before it too.
    """
    joined = torch.cat([last.unsqueeze(1), x], dim=1)
    if valid is None:
        return joined[:, :-1], x[:, -1].clone()
    slots = torch.arange(1, joined.shape[1], device=x.device)
    # The slot of the newest real token, the one that was kept being slot 0.
    newest = torch.where(valid, slots, torch.zeros_like(slots)).cummax(1).values
    source = torch.cat([torch.zeros_like(newest[:, :1]), newest], dim=1)
    index = source.unsqueeze(-1).expand(-1, -1, x.shape[2])
    before = torch.gather(joined, 1, index)
    return before[:, :-1], before[:, -1].clone()


def blend(before: Tensor, step: Tensor, mix: Tensor) -> Tensor:
    """``mix * x + (1 - mix) * before`` per channel, where ``step`` is ``x - before``."""
    return torch.addcmul(before, step, mix)
