"""Elements picked and placed by index."""

from __future__ import annotations

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]


def _gather(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("Gather", *inputs, axis=op.defn.attributes()["axis"])]


def _gather_elements(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    return [e.one("GatherElements", *inputs, axis=op.defn.attributes()["axis"])]


def _scatter_elements(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    a = op.defn.attributes()
    return [e.one("ScatterElements", *inputs, axis=a["axis"], reduction=a["reduction"])]


EMITTERS: dict[str, Emit] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
}
