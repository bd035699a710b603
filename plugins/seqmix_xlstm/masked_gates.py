"""The gates that both mLSTM mixers share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.context import Context
from seqmix.layers import wide

__all__ = ["masked_gates"]


def masked_gates(
    x: Tensor,
    input_gate: nn.Linear,
    forget_gate: nn.Linear,
    ctx: Context,
    soft_cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The gates of ``x [B, S, D]`` before activation, ``[B, H, S]``; float32 or wider.

    With a cap they are ``cap * tanh(gate / cap)``. At padding they are infinite: nothing is added,
    nothing forgotten.
    """
    gates = (input_gate, forget_gate)
    weight = torch.cat([wide(gate.weight) for gate in gates])
    both = F.linear(wide(x), weight, torch.cat([wide(gate.bias) for gate in gates]))
    if soft_cap:
        both = soft_cap * torch.tanh(both / soft_cap)
    adding, keeping = both.transpose(1, 2).chunk(2, dim=1)
    padding = ~ctx.valid.unsqueeze(1)
    return adding.masked_fill(padding, -math.inf), keeping.masked_fill(padding, math.inf)
