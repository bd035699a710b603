"""Attention of many queries, a block at a time against the keys that the block can reach: a Scan.

B batch, H query heads, G key heads, S queries, P past, T keys, K key size, V value size, N blocks
of R queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from seqmix_ir.dims import Size, ceildiv
from seqmix_ir.graph import Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.types import TensorType
from seqmix_onnxruntime.emit import Emitter, tensor_info

__all__ = ["Masked", "attention_by_blocks"]

_SMALLEST, _LARGEST = 64, 256
_LAST = np.iinfo(np.int64).max

Masked = Callable[[Emitter, Op, list[str]], str]
"""Attention of heads apart, ``[q, k, v, query_positions, key_positions]`` -> y, all in one node."""


def attention_by_blocks(e: Emitter, op: Op, inputs: list[str], masked: Masked) -> list[str]:
    """What ``attention`` or ``onnxruntime.attention`` without a bias gives.

    A node for all queries would hold S x T logits per head and compute all of them. Here a block
    of queries reads the slots from the first to the last key that one of its queries can see. They
    are found from the positions while the file runs, so nothing is assumed about their order.
    """
    q, k, v, queries, keys, _, *past = inputs
    heads, groups = _heads(op)
    q, k, v = (_apart(e, x, n) for x, n in ((q, heads), (k, groups), (v, groups)))
    if past[0]:
        k, v = (e.one("Concat", before, x, axis=2) for before, x in zip(past, (k, v), strict=True))
    types = _types(op)
    S = types["q"].shape[2]
    R = _block_size(op)
    missing = e.size(ceildiv(S, R) * R - S)
    lines = _padded(e, q, missing, 2, np.array(0, NUMPY_DTYPES[types["q"].dtype]))
    places = _padded(e, queries, missing, 1, np.array(-1, np.int64))
    wide = e.one("Reshape", lines, e.ints(0, 0, -1, R, fixed(types["q"], 3)))
    rows = e.one("Reshape", places, e.ints(0, -1, R))
    y = e.one(
        "Scan", wide, rows, body=_body(e, op, (k, v, keys), types, masked),
        num_scan_inputs=2, scan_input_axes=[2, 1], scan_output_axes=[2],
    )  # fmt: skip
    y = e.one("Reshape", y, e.ints(0, 0, -1, fixed(types["y"], 3)))
    y = e.one("Slice", y, e.ints(0), e.size(S), e.ints(2))
    if heads:
        y = e.one("Reshape", e.one("Transpose", y, perm=[0, 2, 1, 3]), e.ints(0, 0, -1))
    return [y, *((k, v) if past[0] else ())]


def fixed(type: TensorType, axis: int) -> int:
    """A size that is known when the file is made."""
    size = type.shape[axis]
    if not isinstance(size, int):
        raise TypeError(f"axis {axis} of {type} has no fixed size")
    return size


def _block_size(op: Op) -> int:
    """R: a window's size, but not so small that the calls count, nor so large that memory does."""
    return max(_SMALLEST, min(_LARGEST, op.defn.attributes()["window"] or _LARGEST))


def _heads(op: Op) -> tuple[int, int]:
    """How many heads lie side by side in queries and keys, 0 where they are apart."""
    a = op.defn.attributes()
    return a.get("heads", 0), a.get("kv_heads", 0)


def _apart(e: Emitter, x: str, heads: int) -> str:
    """``[B, S, heads * K]`` as ``[B, heads, S, K]``."""
    if not heads:
        return x
    split = e.one("Reshape", x, e.ints(0, 0, heads, -1))
    return e.one("Transpose", split, perm=[0, 2, 1, 3])


def _types(op: Op) -> dict[str, TensorType]:
    """Of q, k, v and y with heads apart."""
    q, k, v, _, keys = (value.type for value in op.operands[:5] if value is not None)
    heads, groups = _heads(op)
    if not heads:
        return {"q": q, "k": k, "v": v, "y": op.results[0].type}
    (B, S, _), T = q.shape, keys.shape[1]
    K, V = fixed(q, 2) // heads, fixed(v, 2) // groups
    return {
        "q": q.with_shape((B, heads, S, K)),
        "k": q.with_shape((B, groups, T, K)),
        "v": q.with_shape((B, groups, T, V)),
        "y": q.with_shape((B, heads, S, V)),
    }


def _padded(e: Emitter, x: str, missing: str, axis: int, value: Any) -> str:
    """``missing`` more rows at the end of an axis."""
    pads = e.one("Concat", e.ints(0), missing, axis=0)
    return e.one("Pad", x, pads, e.array(value), e.ints(axis))


def _body(
    e: Emitter, op: Op, outer: tuple[str, str, str], types: dict[str, TensorType], masked: Masked
) -> object:
    """One block: ``q [B, H, R, K]`` and its positions ``[B, R]`` -> ``y [B, H, R, V]``."""
    k, v, keys = outer
    inner = Emitter(e.root, outer=e)
    q, queries = (e.root.fresh(stem) for stem in ("block", "places"))
    first, end = _reach(inner, queries, keys, op.defn.attributes())
    near_k, near_v = (inner.one("Slice", x, first, end, inner.ints(2)) for x in (k, v))
    near = inner.one("Slice", keys, first, end, inner.ints(1))
    y = masked(inner, op, [q, near_k, near_v, queries, near])
    R = _block_size(op)
    B, H, _, K = types["q"].shape
    block: tuple[Size, ...] = (B, H, R, K)
    given = [Value(types["q"].with_shape(block)), Value(TensorType("i64", (B, R)))]
    result = Value(types["y"].with_shape((B, H, R, types["y"].shape[3])))
    return helper.make_graph(
        inner.nodes,
        e.root.fresh("body"),
        [tensor_info(n, t) for n, t in zip((q, queries), given, strict=True)],
        [tensor_info(y, result)],
    )


def _reach(e: Emitter, queries: str, keys: str, a: dict[str, Any]) -> tuple[str, str]:
    """Vectors of one number: the first slot that some query can see, and the one after the last.

    All slots where no query sees any: the mask hides them.
    """
    zero = e.array(np.array(0, np.int64))
    seen = e.one("GreaterOrEqual", keys, zero)
    if a["causal"]:
        newest = e.one("ReduceMax", queries, e.ints(1), keepdims=1)
        seen = e.one("And", seen, e.one("LessOrEqual", keys, newest))
    if a["window"]:
        far = e.array(np.array(_LAST, np.int64))
        real = e.one("Where", e.one("Less", queries, zero), far, queries)
        oldest = e.one("ReduceMin", real, e.ints(1), keepdims=1)
        before = e.one("Sub", oldest, e.array(np.array(a["window"], np.int64)))
        seen = e.one("And", seen, e.one("Greater", keys, before))
    slots = e.one("ReduceMax", e.cast(seen, "i32"), e.ints(0), keepdims=0)
    first = e.one("ArgMax", slots, axis=0, keepdims=1)
    last = e.one("ArgMax", slots, axis=0, keepdims=1, select_last_index=1)
    return first, e.one("Add", last, e.ints(1))
