"""A long convolution as a product of spectra.

B batch, D channels, C filters per channel, S sequence, T past and sequence together, L filter
taps. A transform of n samples multiplies circularly: n is chosen so that nothing wraps around onto
the S outputs that are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from seqmix_ir.dims import Size, ceildiv, floordiv, maximum_size, minimum_size
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

_MULTIPLE = 128
"""What an ``fft`` of a length that is not known is a multiple of."""
_LAST = 16
"""n3 of the four steps."""
_MIDDLE = 16
"""n2 for sizes that are not known: a size computed from the length gains little below 65536
samples, and a compiler of loops takes three times as long over it."""
Pair: TypeAlias = "tuple[Value, Value]"


def decompose_fft(b: Builder, op: Op) -> tuple[Value, ...]:
    """By ``rfft`` and ``irfft`` of a length with small factors."""
    x, filter, seq = joined_sequence(b, op)
    S, T = x.type.shape[2], seq.type.shape[2]
    n = _fast_length(_needed(S, T, filter.type.shape[1]))
    filter = resize_last(b, filter, minimum_size(filter.type.shape[1], T))
    spectra = [b(Rfft(n), seq), b(Unsqueeze((0,)), b(Rfft(n), filter))]
    (xr, xi), (fr, fi) = (_parts(b, spectrum, -1, 1) for spectrum in spectra)
    xr, xi = (once_per_filter(b, part, filter) for part in (xr, xi))
    real, imaginary = _product(b, (xr, xi), (fr, fi))
    y = b(Irfft(n), b(Concat(-1), real, imaginary))
    return (narrow(b, b(Slice(2, T - S, T), y), x.type.dtype),)


def decompose_four_step(b: Builder, op: Op) -> tuple[Value, ...]:
    """By matrix products alone: Bailey's four steps (1990) taken twice, but for those that sort.

    A transform of n1 * n2 * n3 samples is one of n1, a twist, one of n2, a twist, and one of n3.
    The product of spectra needs no order of frequencies, so nothing is ever transposed.
    """
    x, filter, seq = joined_sequence(b, op)
    S, T = x.type.shape[2], seq.type.shape[2]
    taps = minimum_size(filter.type.shape[1], T)
    steps = _FourStep(b, *_factors(_needed(S, T, taps)), seq.type.dtype)
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
    return ceildiv(size, _MULTIPLE) * _MULTIPLE


def _factors(size: Size) -> tuple[Size, int, int]:
    """n1, n2 and n3 of a transform of ``size`` samples or a few more; n1 follows the length.

    A product of n1 * n2 * n3 samples costs n1 + 2 n2 + 2 n3 each, as the first level is real;
    below 8 and 16 more levels would cost less, but products so small are slow.
    """
    middle = _MIDDLE
    if isinstance(size, int):
        middle = min(64, 8 * -(-size // 8192))
    return ceildiv(size, middle * _LAST), middle, _LAST


def _parts(b: Builder, x: Value, axis: int, half: Size) -> Pair:
    """The first and the second ``half`` along ``axis``."""
    return b(Slice(axis, 0, half), x), b(Slice(axis, half, 2 * half), x)


def _product(b: Builder, x: Pair, y: Pair) -> Pair:
    """Of complex numbers."""
    real = b(Sub(), b(Mul(), x[0], y[0]), b(Mul(), x[1], y[1]))
    return real, b(Add(), b(Mul(), x[0], y[1]), b(Mul(), x[1], y[0]))


class _FourStep:
    """Transforms of ``n1 * n2 * n3`` real samples and back, all three of any size.

    Sample ``(m1 * n2 + m2) * n3 + m3`` stands at ``[m1, m2, m3]``, frequency
    ``k1 + n1 * (k2 + n2 * k3)`` at ``[k1, k2, k3]``. The samples are real, so ``k1`` up to n1 / 2
    says everything. The first twist is part of the tables of the second level.
    """

    def __init__(self, b: Builder, n1: Size, n2: int, n3: int, dtype: DType) -> None:
        self._b, self._n1, self._n2, self._n3, self._dtype = b, n1, n2, n3, dtype
        self._half = floordiv(n1, 2) + 1
        half, last = b(Iota(self._half)), b(Iota(n3))
        self._first = cosines_and_sines(b, half, b(Iota(n1)), n1, dtype)
        frequencies = self._frequencies(half)
        middle = cosines_and_sines(b, frequencies, b(Iota(n2)), n1 * n2, dtype)
        self._middle = self._by_frequency(middle, n2)
        twist = cosines_and_sines(b, frequencies, last, n1 * n2 * n3, dtype)
        self._twist = self._by_frequency(twist, n3)
        self._last = cosines_and_sines(b, last, last, n3, dtype)

    def spectrum(self, x: Value) -> Pair:
        """Real and imaginary part ``[B, D, k1, k2, k3]`` of ``x [B, D, N]``, padded with zeros."""
        b, (cos, sin) = self._b, self._first
        B, D, _ = x.type.shape
        n1, n2, n3, half = self._n1, self._n2, self._n3, self._half
        x = resize_last(b, x, n1 * n2 * n3)
        x = b(Reshape((B, D, n1, n2 * n3)), x)
        x = b(Matmul(), self._alternating(cos, b(Neg(), sin)), x)
        x = b(Reshape((B, D, half, 2 * n2, n3)), x)
        x = b(Matmul(), _complex_table(b, *self._middle), x)
        cos, sin = self._twist
        twisted = _product(b, _parts(b, x, 3, n2), (cos, b(Neg(), sin)))
        cos, sin = self._last
        table = _complex_table(b, cos, b(Neg(), sin))
        return _parts(b, b(Matmul(), b(Concat(4), *twisted), table), 4, n3)

    def samples(self, spectrum: Pair) -> Value:
        """``[B, D, n1 * n2 * n3]`` of a spectrum: every step turned around."""
        b, (cos, sin) = self._b, self._middle
        B, D = spectrum[0].type.shape[:2]
        n1, n2, n3, half = self._n1, self._n2, self._n3, self._half
        y = b(Matmul(), b(Concat(4), *spectrum), _complex_table(b, *self._last))
        y = b(Concat(3), *_product(b, _parts(b, y, 4, n3), self._twist))
        back = (b(Transpose((0, 2, 1)), cos), b(Neg(), b(Transpose((0, 2, 1)), sin)))
        y = b(Matmul(), _complex_table(b, *back), y)
        y = b(Reshape((B, D, 2 * half, n2 * n3)), y)
        y = b(Matmul(), b(Transpose((1, 0)), self._weighted_first()), y)
        return b(Reshape((B, D, n1 * n2 * n3)), y)

    def _frequencies(self, half: Value) -> Value:
        """``k1 + n1 * k2``, k2 fastest: those that the first two levels tell apart."""
        b = self._b
        steps = b(Mul(), b(Iota(self._n2)), size_value(b, self._n1, "i64"))
        both = b(Add(), b(Unsqueeze((1,)), half), b(Unsqueeze((0,)), steps))
        return b(Reshape((self._half * self._n2,)), both)

    def _by_frequency(self, table: Pair, length: Size) -> Pair:
        """``[k1 k2, length]`` as ``[k1, k2, length]``."""
        shape = (self._half, self._n2, length)
        return self._b(Reshape(shape), table[0]), self._b(Reshape(shape), table[1])

    def _weighted_first(self) -> Value:
        """The first level's table for the way back, where half a spectrum stands for the whole."""
        b, (cos, sin) = self._b, self._first
        weights = b(Unsqueeze((1,)), spectrum_weights(b, self._n1, self._dtype))
        n = self._n1 * self._n2 * self._n3
        scale = b(Div(), weights, size_value(b, n, self._dtype))
        return self._alternating(b(Mul(), scale, cos), b(Mul(), scale, b(Neg(), sin)))

    def _alternating(self, real: Value, imaginary: Value) -> Value:
        """The rows of two tables ``[k1, m1]`` in turn: both parts of one k1 stay together."""
        b = self._b
        rows = b(Concat(1), b(Unsqueeze((1,)), real), b(Unsqueeze((1,)), imaginary))
        return b(Reshape((2 * self._half, self._n1)), rows)


def _complex_table(b: Builder, cos: Value, sin: Value) -> Value:
    """``[.., 2 R, 2 C]``: a real matrix that multiplies a column by ``cos - i sin``.

    From the right it multiplies a row by ``cos + i sin``.
    """
    top, bottom = b(Concat(-1), cos, sin), b(Concat(-1), b(Neg(), sin), cos)
    return b(Concat(-2), top, bottom)
