"""What reaches along the whole sequence without attention: linear scans and long convolutions."""

from __future__ import annotations

from seqmix_ir.dims import minimum_size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.precision import wider_dtype
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
    """One scalar product per channel for one token; else a depthwise Conv, or transforms."""
    steps = op.results[0].type.shape[2]
    return choose_form(e, op, inputs, steps, 1, _one_output, _several_outputs)


def _one_output(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Nothing is as long as the history but the taps, turned around by a Slice, and one product.

    Turning them by Gather, as a Conv wants it, takes five times as long (256 channels, 16384 taps).
    """
    x, filter, history = (_wide(e, *pair) for pair in zip(op.operands, inputs, strict=True))
    copies, one, y = _filters_per_channel(op), e.ints(1), op.results[0].type.dtype
    x = e.one("Concat", *[x] * copies, axis=1) if copies > 1 else x
    sums = e.one("Mul", x, e.one("Slice", filter, e.ints(0), one, one))
    if history:
        sums = e.one("Add", sums, _of_the_past(e, op, filter, history))
    return [sums if wider_dtype(y) == y else e.cast(sums, y)]


def _of_the_past(e: Emitter, op: Op, filter: str, history: str) -> str:
    """The sums ``[B, C D, 1]`` of ``history [B, D, P]`` times taps ``[C D, L]``, newest first."""
    _, taps, past = (None if value is None else value.type for value in op.operands)
    if taps is None or past is None:
        raise TypeError("a long convolution without a history has no past")
    _, D, length = past.shape
    reach = minimum_size(taps.shape[1] - 1, length)
    if reach != length:
        start = e.size(length - reach)
        history = e.one("Slice", history, start, e.size(length), e.ints(2))
    turned = e.one("Slice", filter, e.size(reach), e.ints(0), e.ints(1), e.ints(-1))
    copies = _filters_per_channel(op)
    if copies == 1:
        return e.one("ReduceSum", e.one("Mul", history, turned), e.ints(2), keepdims=1)
    split = e.one("Reshape", turned, e.shape((copies, D, reach)), allowzero=1)
    products = e.one("Mul", e.one("Unsqueeze", history, e.ints(1)), split)
    sums = e.one("ReduceSum", products, e.ints(3), keepdims=1)
    return e.one("Reshape", sums, e.ints(0, -1, 1))


def _filters_per_channel(op: Op) -> int:
    """C, which is 1 where the number of channels is not known."""
    x, filter = (None if value is None else value.type for value in op.operands[:2])
    D, rows = (None if x is None else x.shape[1]), (None if filter is None else filter.shape[0])
    return rows // D if isinstance(D, int) and isinstance(rows, int) else 1


def _wide(e: Emitter, value: Value | None, name: str) -> str:
    """An operand in what its products are summed in."""
    if value is None or wider_dtype(value.type.dtype) == value.type.dtype:
        return name
    return e.cast(name, wider_dtype(value.type.dtype))


def _several_outputs(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
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
