"""Fourier transforms of real sequences, as DFT.

M frequencies of the half spectrum of n samples.
"""

from __future__ import annotations

import numpy as np

from seqmix_ir.dims import Size, floordiv
from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter
from seqmix_onnxruntime.ops.styles import write_style

__all__ = ["EMITTERS"]

_SINCE = 20
"""The opset from which on DFT takes its axis as an input."""
_SHORT = 512
_LAST = np.iinfo(np.int64).min


def _rfft(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """DFT of the samples as numbers without imaginary part; its own padding is not relied on."""
    length = op.defn.attributes()["length"]
    if not _has_exact_kernel(e, op):
        return write_style(e, op, inputs, "matmul")
    x = e.one("Unsqueeze", _resized(e, op, _wide(e, op, inputs[0]), length), e.ints(-1))
    axis = e.array(np.array(-2, np.int64))
    return [_rounded(e, op, e.one("DFT", x, _scalar(e, length), axis, onesided=1))]


def _irfft(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """The inverse DFT of the whole spectrum: ONNX Runtime refuses the inverse of a half one."""
    length: Size = op.defn.attributes()["length"]
    if not _has_exact_kernel(e, op):
        return write_style(e, op, inputs, "matmul")
    x = _wide(e, op, inputs[0])
    # Frequency n - k is the conjugate of k, from the last one that has no double down to 1.
    inner = e.one("Slice", x, e.ints(1), e.size(length - floordiv(length, 2)), e.ints(-2))
    mirrored = e.one("Slice", inner, e.ints(-1), e.ints(_LAST), e.ints(-2), e.ints(-1))
    conjugate = e.one("Mul", mirrored, e.array(np.array([1.0, -1.0], np.float32)))
    whole = e.one("Concat", x, conjugate, axis=-2)
    axis = e.array(np.array(-2, np.int64))
    y = e.one("DFT", whole, _scalar(e, length), axis, inverse=1)
    return [_rounded(e, op, e.one("Gather", y, e.array(np.array(0, np.int64)), axis=-1))]


def _has_exact_kernel(e: Emitter, op: Op) -> bool:
    """Whether DFT is as exact as its element type.

    ONNX Runtime scales in float32 even in float64. It takes lengths that are no power of 2 by
    Bluestein's way, with errors of 5e-6 of the largest value from 33 points on, and slowly: where
    such a length is known and short, a matrix is better.
    """
    length: Size = op.defn.attributes()["length"]
    if op.results[0].type.dtype == "f64" or e.root.form.opset < _SINCE:
        return False
    return not isinstance(length, int) or length > _SHORT or length & (length - 1) == 0


def _resized(e: Emitter, op: Op, x: str, length: Size) -> str:
    """``x`` cut or padded along its last axis."""
    given = op.values[0].type.shape[-1]
    if given == length:
        return x
    cut = e.one("Slice", x, e.ints(0), e.size(length), e.ints(-1))
    missing = e.one("Max", e.one("Sub", e.size(length), e.size(given)), e.ints(0))
    pads = e.one("Concat", e.ints(0), missing, axis=0)
    return e.one("Pad", cut, pads, e.array(np.array(0, np.float32)), e.ints(-1))


def _scalar(e: Emitter, size: Size) -> str:
    return e.one("Reshape", e.size(size), e.array(np.array([], np.int64)))


def _wide(e: Emitter, op: Op, x: str) -> str:
    """DFT has no kernel for 16 bits."""
    return x if op.results[0].type.dtype == "f32" else e.cast(x, "f32")


def _rounded(e: Emitter, op: Op, y: str) -> str:
    dtype = op.results[0].type.dtype
    return y if dtype == "f32" else e.cast(y, dtype)


EMITTERS: dict[str, Emit] = {"irfft": _irfft, "rfft": _rfft}
