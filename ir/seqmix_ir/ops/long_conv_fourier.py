"""A long convolution as a product of spectra.

B batch, D channels, C filters per channel, S sequence, T past and sequence together, L filter
taps. A transform of n samples multiplies circularly: n is chosen so that nothing wraps around onto
the S outputs that are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from seqmix_ir.dims import Size, ceildiv, maximum_size, minimum_size
from seqmix_ir.ops.arithmetic import Add, Div, Mul, Sub
from seqmix_ir.ops.constants import Iota, size_value
from seqmix_ir.ops.elementwise import Neg
from seqmix_ir.ops.fourier import Irfft, Rfft, resize_last
from seqmix_ir.ops.fourier_tables import cosines_and_sines, spectrum_weights
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.long_conv_direct import joined_sequence, once_per_filter
from seqmix_ir.ops.precision import narrow
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Reshape, Transpose, Unsqueeze
from seqmix_ir.types import DType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["decompose_fft", "decompose_four_step"]

_COLUMN = 128
"""n1 for sizes that are not known: it costs little at 256 samples and at 16384."""
Pair: TypeAlias = "tuple[Value, Value]"


def decompose_fft(b: Builder, op: Op) -> tuple[Value, ...]:
    """By ``rfft`` and ``irfft`` of a length with small factors."""
    x, filter, seq = joined_sequence(b, op)
    S, T = x.type.shape[2], seq.type.shape[2]
    n = _fast_length(_needed(S, T, filter.type.shape[1]))
    filter = resize_last(b, filter, minimum_size(filter.type.shape[1], T))
    spectra = [b(Rfft(n), seq), b(Unsqueeze((0,)), b(Rfft(n), filter))]
    (xr, xi), (fr, fi) = (_parts(b, spectrum, -1) for spectrum in spectra)
    xr, xi = (once_per_filter(b, part, filter) for part in (xr, xi))
    real, imaginary = _product(b, (xr, xi), (fr, fi))
    y = b(Irfft(n), b(Concat(-1), real, imaginary))
    return (narrow(b, b(Slice(2, T - S, T), y), x.type.dtype),)


def decompose_four_step(b: Builder, op: Op) -> tuple[Value, ...]:
    """By matrix products alone, in Bailey's four steps (1990) but for the one that sorts.

    A transform of n1 * n2 samples is one of columns, a twist, and one of rows. The product of
    spectra needs no order of frequencies, so nothing is ever transposed.
    """
    x, filter, seq = joined_sequence(b, op)
    S, T = x.type.shape[2], seq.type.shape[2]
    taps = minimum_size(filter.type.shape[1], T)
    size = _needed(S, T, taps)
    n1 = _column(size)
    steps = _FourStep(b, n1, ceildiv(size, n1), seq.type.dtype)
    filter = resize_last(b, filter, taps)
    real, imaginary = (once_per_filter(b, part, filter) for part in steps.spectrum(seq))
    taps_spectrum = steps.spectrum(b(Unsqueeze((0,)), filter))
    spectrum = _product(b, (real, imaginary), taps_spectrum)
    y = steps.samples(spectrum)
    return (narrow(b, b(Slice(2, T - S, T), y), x.type.dtype),)


def _needed(S: Size, T: Size, L: Size) -> Size:
    """The smallest n: it holds the sequence, and what wraps around stays below sample T - S."""
    return maximum_size(T, S + minimum_size(L, T) - 1)


def _fast_length(size: Size) -> Size:
    """A power of 2 from ``size`` on where it is known, else a multiple of 128."""
    if isinstance(size, int):
        return 1 << max(size - 1, 1).bit_length()
    return ceildiv(size, _COLUMN) * _COLUMN


def _column(size: Size) -> int:
    """n1, near sqrt(2 n): a step of columns is real and costs half of one of rows."""
    if not isinstance(size, int):
        return _COLUMN
    return 64 if size <= 1024 else 128 if size <= 8192 else 256


def _parts(b: Builder, x: Value, axis: int) -> Pair:
    """The first and the second half along ``axis``."""
    half = ceildiv(x.type.shape[axis], 2)
    return b(Slice(axis, 0, half), x), b(Slice(axis, half, 2 * half), x)


def _product(b: Builder, x: Pair, y: Pair) -> Pair:
    """Of complex numbers."""
    real = b(Sub(), b(Mul(), x[0], y[0]), b(Mul(), x[1], y[1]))
    return real, b(Add(), b(Mul(), x[0], y[1]), b(Mul(), x[1], y[0]))


class _FourStep:
    """Transforms of ``n1 * n2`` real samples and back; n1 is even, n2 of any size.

    Sample ``m1 * n2 + m2`` stands at ``[m1, m2]``, frequency ``k1 + n1 * k2`` at ``[k1, k2]``.
    The samples are real, so ``k1`` up to n1 / 2 says everything.
    """

    def __init__(self, b: Builder, n1: int, n2: Size, dtype: DType) -> None:
        self._b, self._n1, self._n2, self._dtype = b, n1, n2, dtype
        columns, rows, half = b(Iota(n1)), b(Iota(n2)), b(Iota(n1 // 2 + 1))
        self._column = cosines_and_sines(b, half, columns, n1, dtype)
        self._row = cosines_and_sines(b, rows, rows, n2, dtype)
        self._twist = cosines_and_sines(b, half, rows, n1 * n2, dtype)

    def spectrum(self, x: Value) -> Pair:
        """Real and imaginary part ``[B, D, k1, k2]`` of ``x [B, D, N]``, padded with zeros."""
        b, (cos, sin) = self._b, self._column
        B, D, _ = x.type.shape
        x = resize_last(b, x, self._n1 * self._n2)
        x = b(Reshape((B, D, self._n1, self._n2)), x)
        turned = b(Matmul(), b(Concat(0), cos, b(Neg(), sin)), x)
        cos, sin = self._twist
        twisted = _product(b, _parts(b, turned, 2), (cos, b(Neg(), sin)))
        return self._rows(twisted, forward=True)

    def samples(self, spectrum: Pair) -> Value:
        """``[B, D, n1 * n2]`` of a spectrum."""
        b, (cos, sin) = self._b, self._column
        twisted = _product(b, self._rows(spectrum, forward=False), self._twist)
        weights = b(Unsqueeze((1,)), spectrum_weights(b, self._n1, self._dtype))
        n = self._n1 * self._n2
        scale = b(Div(), weights, size_value(b, n, self._dtype))
        table = b(Concat(0), b(Mul(), scale, cos), b(Mul(), scale, b(Neg(), sin)))
        y = b(Matmul(), b(Transpose((1, 0)), table), b(Concat(2), *twisted))
        return b(Reshape((*y.type.shape[:2], n)), y)

    def _rows(self, x: Pair, forward: bool) -> Pair:
        """The complex transform of each row, as one product with real matrices."""
        b, (cos, sin) = self._b, self._row
        minus = b(Neg(), sin)
        first, second = (minus, sin) if forward else (sin, minus)
        table = b(Concat(0), b(Concat(1), cos, first), b(Concat(1), second, cos))
        return _parts(b, b(Matmul(), b(Concat(3), *x), table), 3)
