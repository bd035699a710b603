"""What reaches along the whole sequence without attention: linear scans and long convolutions."""

from __future__ import annotations

from seqmix_ir.dims import minimum_size
from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter
from seqmix_onnxruntime.ops.styles import choose_form, choose_style, write_style

__all__ = ["EMITTERS"]

_FEW_STEPS = 24
"""Up to this many steps a Scan takes less time than the 120 nodes of the chunks."""
_FEW_PRODUCTS = 256 * 256
"""Outputs times taps up to which Conv is faster than transforms, at any number of channels
(``benchmarks/long_conv_onnx.py``); that includes decoding with a past of any length."""


def _linear_scan(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """One step by itself, a Scan for short prompts, else chunks of 64 whose ends go through one."""
    steps = op.results[0].type.shape[1]
    return choose_form(e, op, inputs, steps, 1, _one_step, _several_steps)


def _several_steps(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    steps = op.results[0].type.shape[1]
    return choose_style(e, op, inputs, steps, _FEW_STEPS, "recurrent", "chunkwise")


def _one_step(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """The definition, where the sequence is as long as a state: a Scan costs ten times as much."""
    a, b, initial = inputs
    inner, outer = (
        ("Add", "Max") if op.defn.attributes()["semiring"] == "max_plus" else ("Mul", "Add")
    )
    h = e.one(outer, e.one(inner, a, e.one("Unsqueeze", initial, e.ints(1))), b)
    return [h, e.one("Squeeze", h, e.ints(1))]


def _long_conv(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """A depthwise Conv, or transforms as matrix products; Conv has no kernel for float64."""
    x, filter, history = op.operands
    if x is None or filter is None or x.type.dtype == "f64":
        return write_style(e, op, inputs, "four_step")
    _, D, S = x.type.shape
    if not isinstance(D, int):
        return write_style(e, op, inputs, "four_step")
    past = 0 if history is None else history.type.shape[2]
    taps = minimum_size(filter.type.shape[1], past + S)
    return choose_style(e, op, inputs, S * taps, _FEW_PRODUCTS, "conv", "four_step")


EMITTERS: dict[str, Emit] = {"linear_scan": _linear_scan, "long_conv": _long_conv}
