"""Recurrent mixers as a third party would write them: LSTM, GRU and minGRU, each one scan."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqmix
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec

__all__ = ["GRU", "LSTM", "MinGRU", "gru_cell", "lstm_cell"]

Tensors = tuple[Tensor, ...]


def lstm_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """Gates in torch's order i, f, g, o; a slice is the input's part of them, and what counts."""
    (h, c), (projected, real), (matrix, bias) = carries, slices, constants
    i, f, g, o = (projected + F.linear(h, matrix, bias)).chunk(4, -1)
    new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    new_h = torch.sigmoid(o) * torch.tanh(new_c)
    return (torch.where(real, new_h, h), torch.where(real, new_c, c)), (new_h,)


def gru_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """Gates in torch's order r, z, n; the reset gate is applied after the recurrent product."""
    (h,), (projected, real), (matrix, bias) = carries, slices, constants
    (xr, xz, xn), (hr, hz, hn) = projected.chunk(3, -1), F.linear(h, matrix, bias).chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    new = (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h
    return (torch.where(real, new, h),), (new,)


def min_gru_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """``h = (1 - z) h + z candidate``, where neither sees h: the cell needs no constants."""
    (h,), (z, candidate, real) = carries, slices
    new = (1 - z) * h + z * candidate
    return (torch.where(real, new, h),), (new,)


class CellConfig(seqmix.Strict):
    """Size of the hidden vector."""

    hidden: int = 7


class _Cell(SequenceMixer):
    """What the three have in common: states by name, projections in and out."""

    Config: ClassVar[type[CellConfig]] = CellConfig
    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]] = ("hidden",)

    def __init__(self, config: CellConfig, width: int) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.input = nn.Linear(width, self.gates * config.hidden)
        self.output = nn.Linear(config.hidden, width, bias=False)

    def finish(self, out: Tensor, ctx: Context) -> Tensor:
        """The output of the layer: 0 at padding."""
        y: Tensor = self.output(out) * ctx.valid.unsqueeze(-1).to(out.dtype)
        return y

    def state_spec(self) -> dict[str, StateSpec]:
        return {key: StateSpec(("B", self.hidden), role="recurrent") for key in self.states}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        return [{"hidden": 7}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 2 * batch_size * seq_len * sum(p.numel() for p in self.parameters())


class _Gated(_Cell):
    """A cell with a matrix on its hidden vector."""

    def __init__(self, config: CellConfig, width: int) -> None:
        super().__init__(config, width)
        self.recurrent = nn.Linear(config.hidden, self.gates * config.hidden)

    def scan(self, cell: Any, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        first = tuple(state[key] for key in self.states)
        constants = (self.recurrent.weight, self.recurrent.bias)
        sequences = (self.input(x), ctx.valid.unsqueeze(-1))
        last, (out,) = seqmix.scan(cell, first, sequences, constants)
        return self.finish(out, ctx), dict(zip(self.states, last, strict=True))


class LSTM(_Gated):
    gates = 4
    states = ("hidden", "cell")

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self.scan(lstm_cell, x, state, ctx)


class GRU(_Gated):
    gates = 3

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self.scan(gru_cell, x, state, ctx)


class MinGRU(_Cell):
    gates = 2

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        z, candidate = self.input(x).chunk(2, -1)
        sequences = (torch.sigmoid(z), candidate, ctx.valid.unsqueeze(-1))
        (last,), (out,) = seqmix.scan(min_gru_cell, (state["hidden"],), sequences)
        return self.finish(out, ctx), {"hidden": last}
