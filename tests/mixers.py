"""Two tiny mixers, unlike softmax attention and each other: a cell, and a convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import seqmix
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.ops import causal_conv1d
from seqmix.state import State, StateSpec

__all__ = ["QUICK_BACKENDS", "GatedCell", "ShortConv"]

QUICK_BACKENDS = ("torch", "onnxruntime")
"""For quick tests of the whole kit: a minute of Triton's interpreter, or of compiling with TVM,
belongs to the full profile."""


class GatedCellConfig(seqmix.Strict):
    """Size of the hidden vector."""

    hidden: int = 10


class GatedCell(SequenceMixer):
    """``h = f h + (1 - f) tanh(W x + R h)``: a nonlinear recurrence with a full matrix."""

    Config = GatedCellConfig

    def __init__(self, config: GatedCellConfig, width: int) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.gate = nn.Linear(width, config.hidden)
        self.input = nn.Linear(width, config.hidden)
        self.recurrent = nn.Parameter(torch.randn(config.hidden, config.hidden) * 0.1)
        self.output = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        gates = torch.sigmoid(self.gate(x))
        valid = ctx.valid.unsqueeze(-1).to(x.dtype)

        def cell(
            carries: tuple[Tensor, ...], slices: tuple[Tensor, ...], constants: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            (h,), (f, candidate, real), (matrix,) = carries, slices, constants
            new = f * h + (1 - f) * torch.tanh(candidate + h @ matrix.T)
            new = real * new + (1 - real) * h
            return (new,), (new * real,)

        (last,), (out,) = seqmix.scan(
            cell, (state["hidden"],), (gates, self.input(x), valid), (self.recurrent,)
        )
        return self.output(out), {"hidden": last}

    def state_spec(self) -> dict[str, StateSpec]:
        return {"hidden": StateSpec(("B", self.hidden), role="recurrent")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        return [{"hidden": 10}, {"hidden": 3}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        per_token = sum(p.numel() for p in self.parameters())
        return 2 * batch_size * seq_len * per_token


class ShortConvConfig(seqmix.Strict):
    """Number of taps, and the activation after them."""

    taps: int = 4
    activation: str = "silu"


class ShortConv(SequenceMixer):
    """A depthwise causal convolution whose padding is moved out of the way."""

    Config = ShortConvConfig

    def __init__(self, config: ShortConvConfig, width: int) -> None:
        super().__init__()
        self.width = width
        self.taps = config.taps
        self.activation = config.activation
        self.weight = nn.Parameter(torch.randn(width, config.taps) * 0.3)
        self.bias = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        joined = ctx.prepend(state["tail"].transpose(1, 2), ctx.compact(x)).transpose(1, 2)
        tail, tokens = joined[:, :, : self.taps - 1], joined[:, :, self.taps - 1 :]
        y, after = causal_conv1d(tokens, self.weight, self.bias, tail, activation=self.activation)
        return ctx.scatter_back(y.transpose(1, 2)), {"tail": after}

    def state_spec(self) -> dict[str, StateSpec]:
        return {"tail": StateSpec(("B", self.width, self.taps - 1), role="conv")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        return [{"taps": 4}, {"taps": 3, "activation": ""}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 2 * batch_size * seq_len * self.width * self.taps
