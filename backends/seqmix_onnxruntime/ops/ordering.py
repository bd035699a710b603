"""The first elements in order, and the index of the smallest."""

from __future__ import annotations

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]


def _top_k(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """TopK breaks ties as the IR does; where NaN comes is open."""
    a = op.defn.attributes()
    k, largest = e.size(a["k"]), int(a["largest"])
    return e.node("TopK", [inputs[0], k], 2, axis=a["axis"], largest=largest, sorted=1)


def _argmin(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    return [e.one("ArgMin", *inputs, axis=a["axis"], keepdims=int(a["keepdims"]))]


EMITTERS: dict[str, Emit] = {"argmin": _argmin, "top_k": _top_k}
