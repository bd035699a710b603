"""Ops that move or repeat elements."""

from __future__ import annotations

import numpy as np

from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Op
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]


def _reshape(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Sizes that stay at their axis are copied, one other may be left to be inferred."""
    before = op.values[0].type.shape
    after: tuple[Size, ...] = op.results[0].type.shape
    target: list[int] = []
    for axis, size in enumerate(after):
        kept = axis < len(before) and before[axis] == size and size != 0
        target.append(size if isinstance(size, int) else 0 if kept else -1)
    if target.count(-1) > 1 or (-1 in target and _may_be_empty(e, before)) or 0 in after:
        # All sizes are said, and one that is 0 means 0, not what the input has at its axis.
        return [e.one("Reshape", inputs[0], e.shape(after), allowzero=1)]
    return [e.one("Reshape", inputs[0], e.ints(*target))]


def _may_be_empty(e: Emitter, shape: tuple[Size, ...]) -> bool:
    """Whether a size may be 0, so that another cannot be inferred: the past may be empty."""
    return not all(isinstance(size, int) or _is_positive(e, size) for size in shape)


def _is_positive(e: Emitter, size: Dim) -> bool:
    """Sums of products, of which at least one has positive factors only."""
    rises = all(coefficient > 0 for _, coefficient in size.terms)
    return rises and any(set(monomial) <= e.root.positive for monomial, _ in size.terms)


def _transpose(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    rank = op.results[0].type.rank
    perm = [axis % rank for axis in op.defn.attributes()["perm"]]
    return [e.one("Transpose", inputs[0], perm=perm)]


def _expand(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Where a size stays, 1 says so: Expand broadcasts both ways."""
    before, after = op.values[0].type.shape, op.results[0].type.shape
    lead = len(after) - len(before)
    wanted = [1 if i >= lead and before[i - lead] == s else s for i, s in enumerate(after)]
    return [e.one("Expand", inputs[0], e.shape(wanted))]


def _unsqueeze(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Unsqueeze", inputs[0], e.ints(*op.defn.attributes()["axes"]))]


def _squeeze(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Squeeze", inputs[0], e.ints(*op.defn.attributes()["axes"]))]


def _concat(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Concat", *inputs, axis=op.defn.attributes()["axis"])]


def _slice(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    start, stop = e.size(a["start"]), e.size(a["stop"])
    return [e.one("Slice", inputs[0], start, stop, e.ints(a["axis"]), e.ints(a["step"]))]


def _pad(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    pads = e.shape([a["before"], a["after"]])
    value = e.array(np.array(a["value"], NUMPY_DTYPES[op.results[0].type.dtype]))
    return [e.one("Pad", inputs[0], pads, value, e.ints(a["axis"]), mode="constant")]


def _split(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    return e.node("Split", [inputs[0], e.ints(*a["sizes"])], len(op.results), axis=a["axis"])


EMITTERS: dict[str, Emit] = {
    "concat": _concat,
    "expand": _expand,
    "onnxruntime.split": _split,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
}
