"""Attention: one mask per pair of positions, shared by all layers, and the operator itself.

B batch, H heads, S queries, T keys.
"""

from __future__ import annotations

import numpy as np

from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]


def _attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """``attention`` of the IR: no past, heads apart."""
    return _node(e, op, [*inputs[:6], "", ""])


def _node(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Attention with a mask made from the positions.

    A row that sees nothing would be an average of all values: it is set to 0 afterwards.
    """
    a = op.defn.attributes()
    q, k, v, queries, keys, bias, *past = inputs
    dtype = NUMPY_DTYPES[op.results[0].type.dtype]
    packed = a.get("heads", 0)
    mask = _visible(e, queries, keys, a["causal"], a["window"])
    if bias:
        lowest = e.array(np.array(np.finfo(dtype).min, dtype))
        mask, seen = _biased(e, mask, bias, lowest)
    else:
        seen = _seen(e, mask, bool(packed))
    more = {"scale": a["scale"]} if a["scale"] else {}
    if packed:
        more |= {"q_num_heads": packed, "kv_num_heads": a["kv_heads"]}
    y, *caches = e.node("Attention", [q, k, v, mask, *past], len(op.results), **more)
    return [e.one("Where", seen, y, e.array(np.array(0, dtype))), *caches]


def _biased(e: Emitter, visible: str, bias: str, lowest: str) -> tuple[str, str]:
    """The mask ``[B, H or 1, S, T]`` that is added, and ``[B, H or 1, S, 1]``: is anything seen.

    A bias of -inf hides a key too, so what is seen is found in the sum of both.
    """
    mask = e.once(("biased", visible, bias), lambda: e.one("Where", visible, bias, lowest))

    def make() -> str:
        top = e.one("ReduceMax", mask, e.ints(3), keepdims=1)
        return e.one("Greater", top, lowest)

    return mask, e.once(("seen", mask), make)


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


def _seen(e: Emitter, visible: str, packed: bool) -> str:
    """Whether a query sees anything: bool ``[B, 1, S, 1]``, or ``[B, S, 1]`` for packed heads."""

    def make() -> str:
        number = e.cast(visible, "i32")
        axes = e.ints(1, 3) if packed else e.ints(3)
        some = e.one("ReduceMax", number, axes, keepdims=int(not packed))
        seen = e.one("Cast", some, to=9)  # bool
        return e.one("Unsqueeze", seen, e.ints(2)) if packed else seen

    return e.once(("seen", visible, packed), make)


EMITTERS: dict[str, Emit] = {"attention": _attention, "onnxruntime.attention": _node}
