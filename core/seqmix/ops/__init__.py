"""The ops that mixers share, as plain functions on torch tensors."""

from __future__ import annotations

from seqmix.ops.attention import attention
from seqmix.ops.causal_conv1d import causal_conv1d
from seqmix.ops.clip_gradient import clip_gradient
from seqmix.ops.linear_attention import linear_attention
from seqmix.ops.rotary import rotary

__all__ = ["attention", "causal_conv1d", "clip_gradient", "linear_attention", "rotary"]
