"""minGRU (Feng et al. 2024, "Were RNNs All We Needed?", arXiv 2410.01201).

B batch, S sequence, D model width, N hidden width.
"""

from __future__ import annotations

from typing import Any

import seqmix
import torch
from pydantic import PositiveInt
from seqmix import Context, State, StateSpec
from torch import Tensor, nn

from seqmix_mingru.positive import positive

__all__ = ["MinGRU", "MinGRUConfig"]

Tensors = tuple[Tensor, ...]


class MinGRUConfig(seqmix.Strict):
    """Options of :class:`MinGRU`; ``hidden`` is N, by default D."""

    hidden: PositiveInt | None = None


class MinGRU(seqmix.SequenceMixer):
    """``h_t = (1 - z_t) h_{t-1} + z_t c_t`` with ``z = sigmoid(W_z x)``, ``c = g(W_c x)``.

    The gate and the candidate look at x alone (section 3.1); g keeps the candidate positive, as in
    the appendix. The state is ``h [B, N]`` in float32, 0 before the first token.
    """

    Config = MinGRUConfig

    def __init__(self, config: MinGRUConfig, width: int) -> None:
        super().__init__()
        hidden = config.hidden or width
        self.gate = nn.Linear(width, hidden)
        self.candidate = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Padding keeps its gate shut, so the state passes by it unchanged."""
        valid = ctx.valid.unsqueeze(-1)
        gate = torch.sigmoid(_wide(self.gate(x)))
        gate = torch.where(valid, gate, torch.zeros_like(gate))
        candidate = positive(_wide(self.candidate(x)))
        (last,), (h,) = seqmix.scan(_cell, [state["h"]], [gate, candidate])
        y = self.output(h.to(x.dtype))
        return torch.where(valid, y, torch.zeros_like(y)), {"h": last}

    def state_spec(self) -> dict[str, StateSpec]:
        """The hidden state, ``[B, N]``."""
        return {"h": StateSpec(("B", self.gate.out_features), "f32", role="recurrent")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As wide as the model, and of another width."""
        return [{}, {"hidden": 7}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The three projections; the recurrence is elementwise."""
        layers = (self.gate, self.candidate, self.output)
        return 2 * batch_size * seq_len * sum(layer.weight.numel() for layer in layers)


def _cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    (h,), (gate, candidate) = carries, slices
    new = h + gate * (candidate - h)
    return (new,), (new,)


def _wide(x: Tensor) -> Tensor:
    """Float32 at least: the recurrence adds up over the whole sequence."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
