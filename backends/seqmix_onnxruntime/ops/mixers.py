"""Rotary embedding and the short convolution.

B batch, H heads, S sequence, K head size, D channels, W taps.
"""

from __future__ import annotations

import numpy as np

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter, fixed_shape

__all__ = ["EMITTERS"]


def _rotary(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """RotaryEmbedding of heads apart, ``[B, H, S, K]``, or side by side, ``[B, S, H * K]``."""
    a = op.defn.attributes()
    half, width = fixed_shape(op, 1, -1)[0], fixed_shape(op, 0, -1)[0]
    more = {"interleaved": int(a["interleaved"])}
    heads = a.get("heads", 0)
    if heads:
        more["num_heads"] = heads
    if 2 * half < width // (heads or 1):
        more["rotary_embedding_dim"] = 2 * half
    return [e.one("RotaryEmbedding", *inputs, **more)]


def _causal_conv1d(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """A depthwise Conv over the history and the new tokens; the history's end is the new tail."""
    x, weight, bias, tail = inputs
    channels, taps = fixed_shape(op, 1)
    joined = e.one("Concat", tail, x, axis=2) if taps > 1 else x
    kernel = e.one("Unsqueeze", weight, e.ints(1))
    y = e.one("Conv", joined, kernel, bias, group=channels, kernel_shape=[taps])
    if op.defn.attributes()["activation"] == "silu":
        y = e.one("Mul", y, e.one("Sigmoid", y))
    if taps == 1:
        return [y, e.one("Identity", tail)]
    last = np.iinfo(np.int64).max
    kept = e.one("Slice", joined, e.ints(1 - taps), e.ints(last), e.ints(2), e.ints(1))
    return [y, kept]


EMITTERS: dict[str, Emit] = {
    "causal_conv1d": _causal_conv1d,
    "onnxruntime.rotary": _rotary,
    "rotary": _rotary,
}
