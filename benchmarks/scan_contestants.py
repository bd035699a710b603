"""Who takes part in ``scan.py``: recurrent layers by seqmix, by torch, and by the package xlstm.

B batch, S sequence, H heads, D width of a head, W = H D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqmix
from seqmix.backend import Program
from seqmix.capture import capture_function
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.eager import adjoint
from seqmix.ops import clip_gradient
from seqmix.weights import Weights
from seqmix_xlstm.slstm import slstm

__all__ = ["LAYERS", "Gru", "Lstm", "Slstm", "SlstmOp", "by_loop", "compiled", "peer_slstm"]

Tensors = tuple[Tensor, ...]
HEADS = 4


def lstm_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """Gates in torch's order i, f, g, o; a slice is the input's part of them."""
    (h, c), (projected,), (matrix, bias) = carries, slices, constants
    i, f, g, o = (projected + F.linear(h, matrix, bias)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), (h,)


def gru_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """Gates in torch's order r, z, n."""
    (h,), (projected,), (matrix, bias) = carries, slices, constants
    (xr, xz, xn), (hr, hz, hn) = projected.chunk(3, -1), F.linear(h, matrix, bias).chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    h = (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h
    return (h,), (h,)


def slstm_cell(carries: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    """Equations 8 to 17 of the xLSTM paper on ``[H, B, D]``, gates i, f, z, o; clipped at 10."""
    h, c, n, m = carries
    i, f, z, o = torch.baddbmm(slices[0], clip_gradient(h, 10.0), constants[0]).chunk(4, -1)
    kept = F.logsigmoid(f) + m
    new_m = torch.maximum(i, kept)
    i, f = torch.exp(i - new_m), torch.exp(kept - new_m)
    c, n = f * c + i * torch.tanh(z), f * n + i
    h = torch.sigmoid(o) * c / n
    return (h, c, n, new_m), (h,)


class Lstm(nn.Module):
    """``[B, S, W] -> [B, S, W]`` with the weights of an ``nn.LSTM``."""

    cell: Any = staticmethod(lstm_cell)
    states = 2
    layer: Any = nn.LSTM

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_torch = self.layer(width, width, batch_first=True)
        self.inputs = width

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self.of_torch
        gates = F.linear(x, layer.weight_ih_l0, layer.bias_ih_l0)
        zero = x.new_zeros(x.shape[0], x.shape[2])
        constants = (layer.weight_hh_l0, layer.bias_hh_l0)
        _, (y,) = seqmix.scan(type(self).cell, (zero,) * self.states, (gates,), constants)
        return y


class Gru(Lstm):
    """The same of an ``nn.GRU``."""

    cell = staticmethod(gru_cell)
    states = 1
    layer = nn.GRU


class Slstm(nn.Module):
    """Gates ``[B, S, 4 W]`` (i, f, z, o, each of all heads) ``-> [B, S, W]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        size = width // HEADS
        self.recurrent = nn.Parameter(torch.randn(HEADS, size, 4, size) / width**0.5)
        self.inputs = 4 * width

    def forward(self, x: Tensor) -> Tensor:
        B, S, D = x.shape[0], x.shape[1], x.shape[2] // (4 * HEADS)
        steps = x.view(B, S, 4, HEADS, D).permute(1, 3, 0, 2, 4).reshape(S, HEADS, B, 4 * D)
        zero = x.new_zeros(HEADS, B, D)
        matrix = self.recurrent.reshape(HEADS, D, 4 * D)
        _, (y,) = seqmix.scan(slstm_cell, (zero,) * 4, (steps,), (matrix,), axis=0)
        return y.permute(2, 0, 1, 3).reshape(B, S, HEADS * D)


class SlstmOp(Slstm):
    """The same by the op of the xLSTM plugin, whose loops are written by hand."""

    def forward(self, x: Tensor) -> Tensor:
        B, S, D = x.shape[0], x.shape[1], x.shape[2] // (4 * HEADS)
        gates = x.view(B, S, 4, HEADS, D).transpose(2, 3)
        zero = x.new_zeros(B, HEADS, D)
        y = slstm(gates, self.recurrent, zero, zero, zero, zero)[0]
        return y.reshape(B, S, HEADS * D)


LAYERS: dict[str, type[Any]] = {"slstm": Slstm, "lstm": Lstm, "gru": Gru}


def by_loop(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The layer with every ``seqmix.scan`` as a plain loop under autograd."""

    def run(x: Tensor) -> Tensor:
        derived = adjoint.run_adjoint
        adjoint.run_adjoint = lambda *call: None
        try:
            y: Tensor = layer(x)
            return y
        finally:
            adjoint.run_adjoint = derived

    return run


def compiled(layer: Any, backend: str, threads: int) -> Callable[[Tensor], Any]:
    """The layer on a backend, for any batch and sequence."""
    captured = capture_function(
        layer,
        [torch.randn(2, 3, layer.inputs)],
        input_names=["x"],
        output_names=["y"],
        dynamic=[("B", "S", None)],
    )
    step = Kind.model_validate({"kind": "mlp", "hidden": 8})
    block = BlockConfig(steps=[step])
    config = ModelConfig(vocab_size=2, width=8, context_length=2, blocks=[block])
    program = Program(captured.module, Weights.of_tensors(captured.weights), config)
    options = {"threads": threads} if backend == "onnxruntime" else {}
    executable = seqmix.compile(program, backend, options=options, cache=False)
    return lambda x: executable.run("forward", {"x": x})["y"]


def peer_slstm(width: int, batch: int) -> nn.Module | None:
    """The sLSTM cell of the package xlstm in torch, or None where it is not installed."""
    try:
        from xlstm.blocks.slstm.cell import sLSTMCell, sLSTMCellConfig
    except ImportError:
        print("the package xlstm is not installed: its rows are missing")
        return None
    config = sLSTMCellConfig(
        hidden_size=width,
        num_heads=HEADS,
        backend="vanilla",
        dtype="float32",
        batch_size=batch,
        recurrent_weight_init="standard",
        enable_automatic_mixed_precision=False,
    )
    return _Peer(sLSTMCell(config))


class _Peer(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(x)[0]
        return y
