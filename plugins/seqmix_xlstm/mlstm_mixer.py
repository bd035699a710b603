"""mLSTM as the xLSTM 7B models have it: no convolution, gates capped softly, a gated output.

Sizes: B batch, S sequence, D model width, H heads, K key size, V value size.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.layers import HeadNorm, equal_parts, raised, split_heads
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_xlstm.initial import linspace_, small_init_, wang_init_
from seqmix_xlstm.masked_gates import masked_gates
from seqmix_xlstm.mlstm import mlstm

__all__ = ["MLSTM", "MLSTMConfig"]


class MLSTMConfig(Strict):
    """Options of :class:`MLSTM`; the defaults are those of xLSTM 7B.

    Queries and keys have ``qk_dim_factor * D`` channels, values ``v_dim_factor * D``; both must be
    multiples of ``heads``.
    """

    heads: PositiveInt
    qk_dim_factor: float = Field(default=0.5, gt=0)
    v_dim_factor: float = Field(default=1.0, gt=0)
    bias: bool = False
    """Biases of all projections; those of the gates are always there."""
    gate_soft_cap: float = Field(default=15.0, ge=0)
    """Gates become ``cap * tanh(gate / cap)`` before activation; 0 for no cap."""
    input_gate: Literal["exp", "sigmoid"] = "exp"
    normalize: bool = True
    """Whether the cell divides by its normalizer; an exponential input gate needs it."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to the normalizer."""
    norm_eps: float = Field(default=1e-6, gt=0)
    chunk: PositiveInt = 64
    """Tokens that are worked on at once; trades speed alone."""
    blocks: PositiveInt = 1
    """Blocks of the whole model: fresh output projections are the smaller, the more there are."""

    @model_validator(mode="after")
    def _exp_is_normalized(self) -> Self:
        if self.input_gate == "exp" and not self.normalize:
            raise ValueError("normalize = false needs input_gate = 'sigmoid'")
        return self


class MLSTM(SequenceMixer):
    """``y = W (sigmoid(o) * norm(mlstm(q, k, v, i, f)))`` (Beck et al. 2025, section 3).

    The state is the matrix memory with its normalizer as the last column, and the stabilizer m;
    both are float32 whatever the model's dtype.
    """

    Config = MLSTMConfig

    def __init__(self, config: MLSTMConfig, width: int) -> None:
        """Five projections, two gates, a norm; ConfigError when the heads do not divide them."""
        super().__init__()
        keys, values = int(width * config.qk_dim_factor), int(width * config.v_dim_factor)
        name = "mixer 'mlstm': heads"
        self.key_size = equal_parts(keys, config.heads, "qk_dim_factor * width", name)
        self.value_size = equal_parts(values, config.heads, "v_dim_factor * width", name)
        self.heads = config.heads
        self.cell: dict[str, Any] = {
            "input": config.input_gate,
            "normalize": config.normalize,
            "eps": config.eps,
            "chunk": config.chunk,
        }
        self.gate_soft_cap = config.gate_soft_cap
        self.query = nn.Linear(width, keys, config.bias)
        self.key = nn.Linear(width, keys, config.bias)
        self.value = nn.Linear(width, values, config.bias)
        self.output_gate = nn.Linear(width, values, config.bias)
        self.input_gate = nn.Linear(width, config.heads)
        self.forget_gate = nn.Linear(width, config.heads)
        self.norm = HeadNorm(values, config.heads, config.norm_eps)
        self.output = nn.Linear(values, width, config.bias)
        self._initialize(width, config.blocks)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        query, key, value = (
            split_heads(project(x), self.heads) for project in (self.query, self.key, self.value)
        )
        gates = masked_gates(x, self.input_gate, self.forget_gate, ctx, self.gate_soft_cap)
        memory, m = raised(state["recurrent"], x), raised(state["m"], x)
        h, memory, m = mlstm(query, key, value, *gates, memory, m, **self.cell)
        mixed = torch.sigmoid(self.output_gate(x)) * self.norm(h.transpose(1, 2))
        after = {
            "recurrent": memory.to(state["recurrent"].dtype),
            "m": m.to(state["m"].dtype),
        }
        return mask_padding(self.output(mixed), ctx), after

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, H, K, V + 1]`` and ``[B, H]``, both float32."""
        memory = ("B", self.heads, self.key_size, self.value_size + 1)
        return {
            "recurrent": StateSpec(memory, "f32", role="recurrent"),
            "m": StateSpec(("B", self.heads), "f32"),
        }

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """K unlike V, head counts that are no powers of two, both input gates, biases."""
        sigmoid = {"input_gate": "sigmoid", "normalize": False, "gate_soft_cap": 0, "bias": True}
        return [
            {"heads": 3, "chunk": 4},
            {"heads": 2, "qk_dim_factor": 0.25, "v_dim_factor": 0.75, **sigmoid},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Projections, and per token and head the update of the memory and its reading."""
        layers = [m for m in self.modules() if isinstance(m, nn.Linear)]
        memory = self.heads * self.key_size * (self.value_size + 1)
        per_token = sum(layer.weight.numel() for layer in layers) + 2 * memory
        return 2 * batch_size * seq_len * per_token

    def _initialize(self, width: int, blocks: int) -> None:
        """Gates start apart from the input: shut for new tokens (-10), open for old ones (3..6)."""
        for layer in (self.query, self.key, self.value, self.output_gate):
            small_init_(layer.weight, width)
        wang_init_(self.output.weight, width, blocks)
        for layer in (self.query, self.key, self.value, self.output_gate, self.output):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for gate in (self.input_gate, self.forget_gate):
            nn.init.zeros_(gate.weight)
        nn.init.constant_(self.input_gate.bias, -10.0)
        linspace_(self.forget_gate.bias)
