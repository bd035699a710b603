"""Convolution over one axis, in groups."""

from __future__ import annotations

from typing import Any

from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["EMITTERS"]


def _conv1d(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Conv; how many taps there are is seen from the weight where the graph does not know it."""
    a = op.defn.attributes()
    weight = op.operands[1]
    taps = None if weight is None else weight.type.shape[2]
    more: dict[str, Any] = {"kernel_shape": [taps]} if isinstance(taps, int) else {}
    y = e.one(
        "Conv",
        *inputs,
        group=a["groups"],
        strides=[a["stride"]],
        dilations=[a["dilation"]],
        pads=[a["before"], a["after"]],
        **more,
    )
    return [y]


EMITTERS: dict[str, Emit] = {"conv1d": _conv1d}
