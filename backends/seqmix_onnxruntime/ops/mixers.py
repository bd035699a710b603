"""Rotary embedding, the short convolution and linear attention.

B batch, H heads, S sequence, K key size, V value size, D channels, W taps.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter, fixed_shape
from seqmix_onnxruntime.form import CONTRIB
from seqmix_onnxruntime.ops.styles import choose_form, write_style

__all__ = ["EMITTERS"]

_NARROW = 15
"""Up to so many tokens CausalConvWithState is the faster one."""
_FEW_CHUNKS = 96
"""Up to so many tokens LinearAttention is not slower than its chunkwise form."""


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
    """A depthwise Conv over the history and the new tokens, or one operator for few tokens.

    ONNX Runtime's CausalConvWithState takes half the time of the Conv, or less, for one token and
    three times as much for 2048 (1024 channels, 4 taps, two cores); they are equal at 16.
    """
    _, taps = fixed_shape(op, 1)
    if not e.root.form.contrib or taps == 1:
        return _wide_conv(e, op, inputs)
    S = op.results[0].type.shape[2]
    return choose_form(e, op, inputs, S, _NARROW, _narrow_conv, _wide_conv)


def _narrow_conv(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    x, weight, bias, tail = inputs
    kernel = e.one("Unsqueeze", weight, e.ints(1))
    activation = op.defn.attributes()["activation"] or "none"
    more = {"activation": activation, "ndim": 1, "domain": CONTRIB}
    return e.node("CausalConvWithState", [x, kernel, bias, tail], 2, **more)


def _wide_conv(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
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


def _linear_attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """One operator, or chunks in simpler ones where these are faster on a CPU.

    ONNX Runtime's own kernel takes 0.09 ms for one token and the chunks 0.48 ms; they are equal
    at 64, and at 2048 it takes 22.7 ms and the chunks 16.0 ms (4 heads of 64 x 128, two cores).
    """
    if not e.root.form.contrib or e.root.form.target != "cpu":
        return _fused_linear_attention(e, op, inputs)
    S, chunks = op.results[0].type.shape[2], partial(write_style, style="chunkwise")
    return choose_form(e, op, inputs, S, _FEW_CHUNKS, _fused_linear_attention, chunks)


def _fused_linear_attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """LinearAttention on heads side by side.

    ONNX Runtime's own kernel takes a quarter of the time of the standard operator, which it
    expands.
    """
    q, k, v, log_decay, state = inputs
    heads = fixed_shape(op, 4, 1)[0]
    packed = [_heads_side_by_side(e, x) for x in (q, k, v)]
    decay = op.operands[3]
    if decay is not None:
        turn = _heads_side_by_side if decay.type.rank == 4 else _heads_last
        log_decay = turn(e, log_decay)
    y, last = _packed_node(e, [*packed, log_decay, state], heads, 1.0)
    apart = e.one("Reshape", y, e.ints(0, 0, heads, -1))
    return [e.one("Transpose", apart, perm=[0, 2, 1, 3]), last]


def _packed_linear_attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    return _packed_node(e, inputs, a["heads"], a["scale"])


def _packed_node(e: Emitter, inputs: list[str], heads: int, scale: float) -> list[str]:
    q, k, v, log_decay, state = inputs
    more = {"domain": CONTRIB} if e.root.form.contrib else {}
    return e.node(
        "LinearAttention",
        [q, k, v, state, log_decay],
        2,
        update_rule="gated" if log_decay else "linear",
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=scale,
        **more,
    )


def _heads_side_by_side(e: Emitter, x: str) -> str:
    """``[B, H, S, K]`` as ``[B, S, H * K]``."""
    turned = e.one("Transpose", x, perm=[0, 2, 1, 3])
    return e.one("Reshape", turned, e.ints(0, 0, -1))


def _heads_last(e: Emitter, x: str) -> str:
    """``[B, H, S]`` as ``[B, S, H]``."""
    return e.one("Transpose", x, perm=[0, 2, 1])


EMITTERS: dict[str, Emit] = {
    "causal_conv1d": _causal_conv1d,
    "linear_attention": _linear_attention,
    "onnxruntime.linear_attention": _packed_linear_attention,
    "onnxruntime.rotary": _rotary,
    "rotary": _rotary,
}
