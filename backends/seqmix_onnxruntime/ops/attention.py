"""Attention: one mask per pair of positions, shared by all layers, and the operator itself.

B batch, H heads, S queries, T keys.
"""

from __future__ import annotations

import numpy as np

from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_onnxruntime.emit import Emit, Emitter
from seqmix_onnxruntime.ops.attention_blocks import attention_by_blocks
from seqmix_onnxruntime.ops.styles import choose_form

__all__ = ["EMITTERS"]

_FEW_QUERIES = 512
"""Up to so many queries one node takes them all."""


def _attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """``attention`` of the IR: no past, heads apart."""
    return _cached_attention(e, op, [*inputs[:6], "", ""])


def _cached_attention(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """One node, or blocks of queries where there are many."""
    form, a, queries = e.root.form, op.defn.attributes(), op.operands[3]
    looks = form.contrib and form.target == "cpu" and (a["causal"] or a["window"])
    if queries is None or inputs[5] or not looks:
        return _whole(e, op, inputs, _mask(e, op, *inputs[3:6]))
    S = queries.type.shape[1]
    shown = inputs[3]
    if not isinstance(S, int):
        # The layers share a mask, so it is made outside of the choice, for as many as it is of use.
        shown = e.one("Slice", shown, e.ints(0), e.ints(_FEW_QUERIES), e.ints(1))
    mask = _mask(e, op, shown, inputs[4], "")

    def few(inner: Emitter, op: Op, inputs: list[str]) -> list[str]:
        return _whole(inner, op, inputs, mask)

    def many(inner: Emitter, op: Op, inputs: list[str]) -> list[str]:
        return attention_by_blocks(inner, op, inputs, _masked)

    return choose_form(e, op, inputs, S, _FEW_QUERIES, few, many)


def _whole(e: Emitter, op: Op, inputs: list[str], mask: tuple[str, str]) -> list[str]:
    """Attention of all queries to all keys, which appends to the cache when there is one."""
    q, k, v, _, _, _, *past = inputs
    a = op.defn.attributes()
    packed, more = a.get("heads", 0), _scale(op)
    visible, seen = mask
    if packed:
        seen = e.one("Squeeze", seen, e.ints(1))
        more |= {"q_num_heads": packed, "kv_num_heads": a["kv_heads"]}
    y, *caches = e.node("Attention", [q, k, v, visible, *past], len(op.results), **more)
    return [_shown(e, op, seen, y), *caches]


def _masked(e: Emitter, op: Op, inputs: list[str]) -> str:
    """Attention of heads apart without a past and a bias."""
    q, k, v, queries, keys = inputs
    visible, seen = _mask(e, op, queries, keys, "")
    return _shown(e, op, seen, e.one("Attention", q, k, v, visible, **_scale(op)))


def _shown(e: Emitter, op: Op, seen: str, y: str) -> str:
    """A row that sees nothing would be an average of all values: it is 0."""
    return e.one("Where", seen, y, e.array(np.array(0, NUMPY_DTYPES[op.results[0].type.dtype])))


def _scale(op: Op) -> dict[str, float]:
    scale: float = op.defn.attributes()["scale"]
    return {"scale": scale} if scale else {}


def _mask(e: Emitter, op: Op, queries: str, keys: str, bias: str) -> tuple[str, str]:
    """What hides keys, ``[B, 1 or H, S, T]``, and whether a query sees any, ``[.., S, 1]``."""
    a = op.defn.attributes()
    visible = _visible(e, queries, keys, a["causal"], a["window"])
    if not bias:
        return visible, _seen(e, visible)
    dtype = NUMPY_DTYPES[op.results[0].type.dtype]
    return _biased(e, visible, bias, e.array(np.array(np.finfo(dtype).min, dtype)))


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


def _seen(e: Emitter, visible: str) -> str:
    """Whether a query sees anything: bool ``[B, 1, S, 1]``."""

    def make() -> str:
        some = e.one("ReduceMax", e.cast(visible, "i32"), e.ints(3), keepdims=1)
        return e.one("Cast", some, to=9)  # bool

    return e.once(("seen", visible), make)


EMITTERS: dict[str, Emit] = {
    "attention": _attention,
    "onnxruntime.attention": _cached_attention,
}
