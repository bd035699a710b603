"""The mixer ops that ONNX has an operator for.

B batch, H heads, G key heads, S queries, T keys, K key size, D channels, W taps.
"""

from __future__ import annotations

import numpy as np

from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_onnxruntime.emit import Emit, Emitter, fixed_shape

__all__ = ["EMITTERS"]


def _attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Attention with a mask made from the positions; layers with equal positions share it.

    A row that sees nothing would be an average of all values: it is set to 0 afterwards.
    """
    a = op.defn.attributes()
    q, k, v, queries, keys, bias, _ = inputs
    visible = _visible(e, queries, keys, a["causal"], a["window"])
    dtype = NUMPY_DTYPES[op.results[0].type.dtype]
    mask = visible
    if bias:
        lowest = e.array(np.array(np.finfo(dtype).min, dtype))
        mask = e.one("Where", visible, bias, lowest)
    more = {"scale": a["scale"]} if a["scale"] else {}
    y = e.one("Attention", q, k, v, mask, **more)
    zero = e.array(np.array(0, dtype))
    return [e.one("Where", _seen(e, visible), y, zero)]


def _visible(e: Emitter, queries: str, keys: str, causal: bool, window: int) -> str:
    """Bool ``[B, 1, S, T]``: whether a query sees a key."""

    def make() -> str:
        rows = e.one("Unsqueeze", queries, e.ints(1, 3))
        columns = e.one("Unsqueeze", keys, e.ints(1, 2))
        zero = e.array(np.array(0, np.int64))
        seen = e.one("GreaterOrEqual", columns, zero)
        if causal:
            # A causal query at -1 sees nothing at 0 or above, so padding needs no more.
            seen = e.one("And", seen, e.one("LessOrEqual", columns, rows))
        else:
            seen = e.one("And", seen, e.one("GreaterOrEqual", rows, zero))
        if window:
            first = e.one("Sub", rows, e.array(np.array(window, np.int64)))
            seen = e.one("And", seen, e.one("Greater", columns, first))
        return seen

    return e.once(("visible", queries, keys, causal, window), make)


def _seen(e: Emitter, visible: str) -> str:
    """Bool ``[B, 1, S, 1]``: whether a query sees anything."""

    def make() -> str:
        number = e.one("Cast", visible, to=6)  # int32
        return e.one("Cast", e.one("ReduceMax", number, e.ints(3), keepdims=1), to=9)  # bool

    return e.once(("seen", visible), make)


def _rotary(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """RotaryEmbedding with tables per row; a partial rotation says how wide it is."""
    x, cos, sin = inputs
    interleaved = int(op.defn.attributes()["interleaved"])
    size, half = fixed_shape(op, 0, -1)[0], fixed_shape(op, 1, -1)[0]
    if 2 * half < size:
        return [_partial_rotary(e, x, cos, sin, interleaved, 2 * half, size)]
    return [e.one("RotaryEmbedding", x, cos, sin, interleaved=interleaved)]


def _partial_rotary(
    e: Emitter, x: str, cos: str, sin: str, interleaved: int, rotated: int, size: int
) -> str:
    """Rotate the first entries by themselves and put the rest back."""
    first, rest = e.node("Split", [x, e.ints(rotated, size - rotated)], 2, axis=3)
    turned = e.one("RotaryEmbedding", first, cos, sin, interleaved=interleaved)
    return e.one("Concat", turned, rest, axis=3)


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
    "attention": _attention,
    "causal_conv1d": _causal_conv1d,
    "rotary": _rotary,
}
