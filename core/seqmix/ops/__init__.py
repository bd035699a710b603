"""The ops that mixers share, as plain functions on torch tensors."""

from __future__ import annotations

from seqmix.ops.attention import attention
from seqmix.ops.causal_conv1d import causal_conv1d
from seqmix.ops.clip_gradient import clip_gradient
from seqmix.ops.cross_entropy import cross_entropy
from seqmix.ops.linear_attention import linear_attention
from seqmix.ops.linear_scan import linear_scan
from seqmix.ops.long_conv import long_conv
from seqmix.ops.rotary import rotary
from seqmix.ops.selected_attention import selected_attention

__all__ = [
    "attention",
    "causal_conv1d",
    "clip_gradient",
    "cross_entropy",
    "linear_attention",
    "linear_scan",
    "long_conv",
    "rotary",
    "selected_attention",
]
