"""Retention: linear attention whose heads forget at fixed rates, with rotated queries and keys.

Sizes: B batch, S sequence, D model width, H heads, K size of a query or key, V value size.
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
from seqmix.errors import ConfigError
from seqmix.layers import HeadNorm, equal_parts, raised, split_heads, wide
from seqmix.mixer import SequenceMixer
from seqmix.ops import linear_attention, rotary
from seqmix.state import State, StateSpec

__all__ = ["Retention", "RetentionConfig"]

_BASE = 10000.0


class RetentionConfig(Strict):
    """Options of :class:`Retention`. Values have ``value_factor * D`` channels, twice D as usual.

    ``key_dim`` is K, an even number; by default ``D / heads``.
    """

    heads: PositiveInt
    key_dim: PositiveInt | None = Field(default=None, multiple_of=2)
    value_factor: float = Field(default=2.0, gt=0)
    norm_eps: float = Field(default=1e-6, gt=0)
    chunk: PositiveInt = 64
    """Tokens that are worked on at once; trades speed alone."""


class Retention(SequenceMixer):
    """``y = W_o (silu(g) * norm(o))``, ``o_t = sum_{s<=t} gamma^(t-s) (q_t . k_s) / sqrt(K) v_s``.

    Multi-scale retention (Sun et al. 2023, equations 5 to 8): head h forgets by ``gamma =
    1 - 2^(-5-h)`` per token, and the norm is one per head. Queries and keys turn with the
    position, pair i by ``10000^(-i / (K/2 - 1))`` per token, so that a product depends on the
    distance. The decay counts real tokens, the rotation uses their positions. The paper's scaling
    of scores by their sums is left out: it cancels in the norm. The state is ``[B, H, K, V]`` in
    float32 and of one size at any length; sequences are computed chunk by chunk.
    """

    Config = RetentionConfig

    def __init__(self, config: RetentionConfig, width: int) -> None:
        """Five projections and a norm; ConfigError when the heads do not divide them."""
        super().__init__()
        name = "mixer 'retention': heads"
        self.heads = config.heads
        self.key_dim = config.key_dim or equal_parts(width, config.heads, "width", name)
        if self.key_dim % 2:
            raise ConfigError(
                f"mixer 'retention': width / heads is {self.key_dim}, which is odd, but pairs of "
                "entries are rotated; change heads, or give an even key_dim"
            )
        values = int(width * config.value_factor)
        self.value_dim = equal_parts(values, config.heads, "value_factor * width", name)
        self.chunk = config.chunk
        self.query = nn.Linear(width, self.heads * self.key_dim, bias=False)
        self.key = nn.Linear(width, self.heads * self.key_dim, bias=False)
        self.value = nn.Linear(width, values, bias=False)
        self.gate = nn.Linear(width, values, bias=False)
        self.norm = HeadNorm(values, self.heads, config.norm_eps)
        self.output = nn.Linear(values, width, bias=False)
        self._initialize()

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        # Without biases all that follows from an input of 0 is 0: padding adds and reads nothing.
        x = mask_padding(x, ctx)
        tables = self._tables(ctx.positions, wide(x).dtype)
        q = rotary(split_heads(self.query(x), self.heads), *tables, interleaved=True)
        k = rotary(split_heads(self.key(x), self.heads), *tables, interleaved=True)
        v = split_heads(self.value(x), self.heads)
        memory = raised(state["recurrent"], x)
        decay = self._log_decay(ctx.valid, memory.dtype)
        k = k * self.key_dim**-0.5
        o, memory = linear_attention(q, k, v, decay, memory, chunk=self.chunk)
        y = self.output(F.silu(self.gate(x)) * self.norm(o.transpose(1, 2)))
        return y, {"recurrent": memory.to(state["recurrent"].dtype)}

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, H, K, V]`` in float32."""
        memory = ("B", self.heads, self.key_dim, self.value_dim)
        return {"recurrent": StateSpec(memory, "f32", role="recurrent")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """K unlike V, K = 2, and head counts that are no powers of two."""
        return [
            {"heads": 3, "chunk": 4},
            {"heads": 2, "key_dim": 10, "value_factor": 0.75},
            {"heads": 12},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Projections, and per token and head the update of the memory and its reading."""
        layers = (self.query, self.key, self.value, self.gate, self.output)
        memory = self.heads * self.key_dim * self.value_dim
        per_token = sum(layer.weight.numel() for layer in layers) + 2 * memory
        return 2 * batch_size * seq_len * per_token

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Tables cos and sin ``[B, S, K/2]`` of the angles, which are products in float64."""
        pairs = self.key_dim // 2
        turns = [_BASE ** -(i / max(pairs - 1, 1)) for i in range(pairs)]
        speed = torch.tensor(turns, dtype=torch.float64, device=positions.device)
        angles = positions.clamp(min=0).to(torch.float64).unsqueeze(-1) * speed
        return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)

    def _log_decay(self, valid: Tensor, dtype: torch.dtype) -> Tensor:
        """``log gamma`` per head and token ``[B, H, S]``, 0 at padding."""
        rates = [math.log1p(-(2.0 ** -(5 + h))) for h in range(self.heads)]
        rate = torch.tensor(rates, dtype=dtype, device=valid.device).reshape(1, -1, 1)
        return valid.unsqueeze(1).to(dtype) * rate

    def _initialize(self) -> None:
        """Uniform after Xavier, those in front of the norm smaller, as in the paper's own code."""
        for layer in (self.query, self.key, self.value, self.gate):
            nn.init.xavier_uniform_(layer.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.output.weight)
