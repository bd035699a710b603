"""mLSTM in its original block: projected up, convolved, gated by a second path, projected down.

Sizes: B batch, S sequence, D model width, I inner width, H heads, K size of a head, W taps.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.layers import (
    CausalConv,
    HeadNorm,
    HeadwiseLinear,
    equal_parts,
    raised,
    split_heads,
)
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_xlstm.initial import linspace_, small_init_, wang_init_
from seqmix_xlstm.masked_gates import masked_gates
from seqmix_xlstm.mlstm import mlstm

__all__ = ["MLSTMUp", "MLSTMUpConfig"]


class MLSTMUpConfig(Strict):
    """Options of :class:`MLSTMUp`; the defaults are the paper's.

    The inner width is ``proj_factor * D``, rounded up to a multiple of ``round_up_to``.
    """

    heads: PositiveInt = 4
    proj_factor: float = Field(default=2.0, gt=0)
    round_up_to: PositiveInt = 64
    conv_taps: PositiveInt = 4
    qkv_block_size: PositiveInt = 4
    """Queries, keys and values are projected in groups of so many channels."""
    bias: bool = False
    """Biases of the projections up and down; those of the gates are always there."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to the normalizer."""
    norm_eps: float = Field(default=1e-5, gt=0)
    chunk: PositiveInt = 64
    """Tokens that are worked on at once; trades speed alone."""
    blocks: PositiveInt = 1
    """Blocks of the whole model: fresh projections down are the smaller, the more there are."""


class MLSTMUp(SequenceMixer):
    """The mLSTM block of the first paper (Beck et al. 2024, figure 11), without norm and residual.

    With ``[u, z] = W_up x`` and ``c = silu(conv(u))``: queries and keys come from c, values from u,
    the gates from all three, and ``y = W_down ((norm(h) + skip * c) * silu(z))``. Keys are scaled
    by ``1 / sqrt(K)``, and so is the state: the matrix memory with its normalizer as the last
    column and the stabilizer m, both float32, and the tail of the convolution.
    """

    Config = MLSTMUpConfig

    def __init__(self, config: MLSTMUpConfig, width: int) -> None:
        """ConfigError when heads or groups of channels do not divide the inner width."""
        super().__init__()
        inner = math.ceil(config.proj_factor * width / config.round_up_to) * config.round_up_to
        name = "mixer 'mlstm_up': inner width"
        groups = equal_parts(inner, config.qkv_block_size, name, "qkv_block_size")
        self.head_size = equal_parts(inner, config.heads, name, "heads")
        self.heads = config.heads
        self.cell: dict[str, Any] = {"eps": config.eps, "chunk": config.chunk}
        self.up = nn.Linear(width, 2 * inner, config.bias)
        self.conv = CausalConv(inner, config.conv_taps)
        self.query = HeadwiseLinear(inner, groups)
        self.key = HeadwiseLinear(inner, groups)
        self.value = HeadwiseLinear(inner, groups)
        self.input_gate = nn.Linear(3 * inner, config.heads)
        self.forget_gate = nn.Linear(3 * inner, config.heads)
        self.norm = HeadNorm(inner, config.heads, config.norm_eps)
        self.skip = nn.Parameter(torch.ones(inner))
        self.down = nn.Linear(inner, width, config.bias)
        self._initialize(width, config.blocks)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        inner, gate = self.up(x).chunk(2, dim=-1)
        convolved, tail = self.conv(inner, state["conv"], ctx)
        query, key, value = self.query(convolved), self.key(convolved), self.value(inner)
        seen = torch.cat([query, key, value], dim=-1)
        gates = masked_gates(seen, self.input_gate, self.forget_gate, ctx)
        query, key, value = (split_heads(part, self.heads) for part in (query, key, value))
        memory, m = raised(state["recurrent"], x), raised(state["m"], x)
        h, memory, m = mlstm(query, key, value, *gates, memory, m, scale_on="k", **self.cell)
        mixed = (self.norm(h.transpose(1, 2)) + self.skip * convolved) * F.silu(gate)
        after = {
            "recurrent": memory.to(state["recurrent"].dtype),
            "m": m.to(state["m"].dtype),
            "conv": tail,
        }
        return mask_padding(self.down(mixed), ctx), after

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, H, K, K + 1]`` and ``[B, H]`` in float32, and ``[B, I, W - 1]``."""
        memory = ("B", self.heads, self.head_size, self.head_size + 1)
        channels, taps = self.conv.weight.shape
        return {
            "recurrent": StateSpec(memory, "f32", role="recurrent"),
            "m": StateSpec(("B", self.heads), "f32"),
            "conv": StateSpec(("B", channels, taps - 1), role="conv"),
        }

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Head counts and sizes that are no powers of two; one tap, which has no tail."""
        sizes = {"proj_factor": 1.2, "round_up_to": 6, "qkv_block_size": 3, "conv_taps": 1}
        return [
            {"heads": 3, "round_up_to": 12, "chunk": 4},
            {"heads": 2, **sizes, "bias": True},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """All weights but norm and skip, and per token and head the memory's update and reading."""
        layers = [
            m for m in self.modules() if isinstance(m, nn.Linear | HeadwiseLinear | CausalConv)
        ]
        memory = self.heads * self.head_size * (self.head_size + 1)
        per_token = sum(layer.weight.numel() for layer in layers) + 2 * memory
        return 2 * batch_size * seq_len * per_token

    def _initialize(self, width: int, blocks: int) -> None:
        """Gates start apart from the input: around 0 for new tokens, open for old ones (3..6)."""
        for layer in (self.up, self.query, self.key, self.value):
            small_init_(layer.weight, width)
        wang_init_(self.down.weight, width, blocks)
        for layer in (self.up, self.down):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for gate in (self.input_gate, self.forget_gate):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.input_gate.bias, std=0.1)
        linspace_(self.forget_gate.bias)
