"""Fourier transforms of real sequences, their spectra as real pairs (real, imaginary).

N given samples, n transformed samples, M = n // 2 + 1 frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size, floordiv, minimum_size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Div, Mul
from seqmix_ir.ops.constants import Iota, size_value
from seqmix_ir.ops.elementwise import Neg
from seqmix_ir.ops.fourier_tables import cosines_and_sines, spectrum_weights
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.precision import narrow, widen
from seqmix_ir.ops.rules import expect_dtype
from seqmix_ir.ops.segments import Concat, Pad, Slice
from seqmix_ir.ops.shape import Reshape, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Irfft", "Rfft", "resize_last"]


@op
class Rfft(OpDef):
    """The half spectrum ``y[.., k, :] = sum_m x[.., m] (cos, -sin)(2 pi m k / n)``.

    ``x [.., N]`` is cut or padded with zeros to ``length`` n, which any number from 1 may be ->
    ``y [.., n // 2 + 1, 2]``. Computed in float32 at least, and rounded where it leaves.
    """

    name = "rfft"
    operands = ("x",)
    results = ("y",)
    length: Size

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, FLOATS)
        if x.rank < 1:
            raise IRError("'x' is a scalar, expected at least one axis")
        _check_length(self.length)
        return (x.with_shape((*x.shape[:-1], floordiv(self.length, 2) + 1, 2)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        y = np.fft.rfft(x, run.size(self.length))
        return (np.stack((y.real, y.imag), -1).astype(x.dtype),)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"matmul": self._matmul}

    def _matmul(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x = widen(b, op.values[0])
        n, dtype = self.length, x.type.dtype
        count = floordiv(n, 2) + 1
        cos, sin = cosines_and_sines(b, b(Iota(n)), b(Iota(count)), n, dtype)
        table = b(Concat(2), b(Unsqueeze((2,)), cos), b(Unsqueeze((2,)), b(Neg(), sin)))
        flat = b(Reshape((n, 2 * count)), table)
        y = b(Reshape(op.results[0].type.shape), b(Matmul(), resize_last(b, x, n), flat))
        return (narrow(b, y, op.values[0].type.dtype),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        sizes = ((7, 7), (8, 13), (9, 6), (1, 1))
        return [Example(cls(n), (rng.standard_normal((2, 3, given)),)) for given, n in sizes]


@op
class Irfft(OpDef):
    """The real sequence of ``length`` n whose half spectrum is ``x``, the inverse of ``rfft``.

    ``x [.., n // 2 + 1, 2]`` -> ``y [.., n]``. What has no meaning in a real sequence's spectrum
    is ignored: the imaginary parts of frequency 0 and, for even n, of frequency n / 2.
    """

    name = "irfft"
    operands = ("x",)
    results = ("y",)
    length: Size

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect_dtype("x", x, FLOATS)
        _check_length(self.length)
        wanted = (floordiv(self.length, 2) + 1, 2)
        if x.rank < 2 or x.shape[-2:] != wanted:
            raise IRError(
                f"'x' is {x}, expected its last axes to be {wanted[0]} and 2, the half spectrum "
                f"of {self.length} samples"
            )
        return (x.with_shape((*x.shape[:-2], self.length)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        y = np.fft.irfft(x[..., 0] + 1j * x[..., 1], run.size(self.length))
        return (y.astype(x.dtype),)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"matmul": self._matmul}

    def _matmul(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x = widen(b, op.values[0])
        n, dtype = self.length, x.type.dtype
        count = x.type.shape[-2]
        cos, sin = cosines_and_sines(b, b(Iota(count)), b(Iota(n)), n, dtype)
        weights = b(Unsqueeze((1,)), spectrum_weights(b, n, dtype))
        scaled = b(Div(), weights, size_value(b, n, dtype))
        rows = (b(Unsqueeze((1,)), b(Mul(), scaled, t)) for t in (cos, b(Neg(), sin)))
        table = b(Reshape((2 * count, n)), b(Concat(1), *rows))
        flat = b(Reshape((*x.type.shape[:-2], 2 * count)), x)
        return (narrow(b, b(Matmul(), flat, table), op.values[0].type.dtype),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [
            Example(cls(n), (rng.standard_normal((2, 3, n // 2 + 1, 2)),)) for n in (1, 6, 7, 16)
        ]


def resize_last(b: Builder, x: Value, length: Size) -> Value:
    """``x`` with its last axis cut, or padded with zeros, to ``length``."""
    given = x.type.shape[-1]
    kept = minimum_size(given, length)
    if kept != given:
        x = b(Slice(-1, 0, kept), x)
    return x if kept == length else b(Pad(-1, 0, length - kept), x)


def _check_length(length: Size) -> None:
    if isinstance(length, int) and length < 1:
        raise IRError(f"length is {length}, expected at least 1")


OPS: tuple[type[OpDef], ...] = (Irfft, Rfft)
