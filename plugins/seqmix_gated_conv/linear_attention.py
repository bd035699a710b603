"""Linear attention: a kernel of feature maps instead of softmax, so that the past is a matrix.

Sizes: B batch, S sequence, D model width, H heads, G key-value heads, d size of a query or key,
K size of its features, V value size.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from seqmix.branches import linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.layers import equal_parts, raised, split_heads, wide
from seqmix.mixer import SequenceMixer
from seqmix.ops import linear_attention
from seqmix.state import State, StateSpec
from seqmix_gated_conv.feature_maps import FEATURE_MAPS

__all__ = ["LinearAttention", "LinearAttentionConfig"]


class LinearAttentionConfig(Strict):
    """Options of :class:`LinearAttention`; ``kv_heads`` defaults to ``heads``."""

    heads: PositiveInt = 1
    kv_heads: PositiveInt | None = None
    """Heads of keys and values, each shared by ``heads / kv_heads`` heads of queries."""
    feature_map: Literal["taylor", "elu"] = "taylor"
    feature_dim: PositiveInt = 16
    """Size d of a query or key, before the feature map."""
    value_dim: PositiveInt | None = None
    """Size V of a value; by default D / heads."""
    eps: float = Field(default=1e-12, gt=0)
    """Added to the normalizer."""
    bias: bool = False
    """Biases of all four projections."""
    chunk: PositiveInt = 64
    """Tokens that are worked on at once; trades speed alone."""

    @model_validator(mode="after")
    def _groups_divide(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}")
        return self


class LinearAttention(SequenceMixer):
    """``y_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s / (eps + sum_{s<=t} phi(q_t) . phi(k_s))``.

    Katharopoulos et al. (2020, section 3) with their ``elu(x) + 1``, or with the Taylor features
    of Based (Arora et al. 2024); see :mod:`~seqmix_gated_conv.feature_maps`. Features and sums are
    float32 whatever the model's dtype. The state is ``sum_s phi(k_s) [v_s, 1]^T``,
    ``[B, G, K, V + 1]``: its last column is the normalizer. It has one size at any length. There
    is no position encoding; a short convolution or token shift in front usually tells places apart.
    """

    Config = LinearAttentionConfig

    def __init__(self, config: LinearAttentionConfig, width: int) -> None:
        """Four projections; ConfigError when ``heads`` does not divide a width that it should."""
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.value_dim = config.value_dim or equal_parts(
            width, config.heads, "mixer 'linear_attention': width", "heads (or give value_dim)"
        )
        self.eps = config.eps
        self.chunk = config.chunk
        self.features = FEATURE_MAPS[config.feature_map](config.feature_dim)
        self.query = linear(width, self.heads * config.feature_dim, config.bias)
        self.key = linear(width, self.kv_heads * config.feature_dim, config.bias)
        self.value = linear(width, self.kv_heads * self.value_dim, config.bias)
        self.output = linear(self.heads * self.value_dim, width, config.bias)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        q = self.features(wide(split_heads(self.query(x), self.heads)))
        k = self.features(wide(split_heads(self.key(x), self.kv_heads)))
        v = self._widened_values(x, ctx)
        memory = raised(state["recurrent"], x)
        sums, memory = linear_attention(
            q, self._shared(k), self._shared(v), None, self._shared(memory), chunk=self.chunk
        )
        y = sums[..., :-1] / (sums[..., -1:] + self.eps)
        y = self.output(y.transpose(1, 2).flatten(2).to(x.dtype))
        # The heads of a group have equal memories: one of them is kept.
        kept = memory[:, :: self.heads // self.kv_heads].to(state["recurrent"].dtype)
        return mask_padding(y, ctx), {"recurrent": kept}

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, G, K, V + 1]`` in float32."""
        memory = ("B", self.kv_heads, self.features.size, self.value_dim + 1)
        return {"recurrent": StateSpec(memory, "f32", role="recurrent")}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both feature maps, grouped keys, odd sizes, a head count that is no power of two."""
        return [
            {"heads": 3, "feature_dim": 3, "chunk": 4},
            {"heads": 6, "kv_heads": 2, "feature_map": "elu", "feature_dim": 5, "value_dim": 7},
            {"heads": 4, "kv_heads": 1, "feature_dim": 1, "bias": True},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Projections, and per token the update of G memories and the reading of them by H heads.

        The linear form is counted, feature maps are not. A chunkwise computation trades some of it
        for products within a chunk.
        """
        layers = (self.query, self.key, self.value, self.output)
        memory = self.features.size * (self.value_dim + 1)
        per_token = sum(layer.weight.numel() for layer in layers)
        per_token += (self.heads + self.kv_heads) * memory
        return 2 * batch_size * seq_len * per_token

    def _widened_values(self, x: Tensor, ctx: Context) -> Tensor:
        """``[v, 1]`` as ``[B, G, S, V + 1]``, zeros at padding, which therefore adds nothing."""
        v = wide(split_heads(self.value(x), self.kv_heads))
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        if not ctx.may_be_padded:
            return v
        return torch.where(ctx.valid[:, None, :, None], v, torch.zeros_like(v))

    def _shared(self, x: Tensor) -> Tensor:
        """``[B, G, ...]`` as ``[B, H, ...]``: every head of queries finds its own."""
        copies = self.heads // self.kv_heads
        if copies == 1:
            return x
        apart = x.unsqueeze(2).expand(-1, -1, copies, *[-1] * (x.dim() - 2))
        return apart.flatten(1, 2)
