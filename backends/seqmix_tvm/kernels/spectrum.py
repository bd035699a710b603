"""Convolutions of real sequences by a complex transform of half their length, eight at a time.

A sequence of 2 N numbers is taken as N complex ones, number n beside number n + N, and turned by
``w ** n`` with ``w = exp(i pi / 2 N)``. The product of two transforms is then that of a convolution
that wraps around with the sign changed (Bailey and Swarztrauber 1991: a weighted transform), and
nothing has to be taken apart. Going there the frequencies come out in an order of their own, and
coming back they are expected in it: nothing is sorted (Gentleman and Sande 1966, Cooley and Tukey
1965). Four points are combined at once, and two where the logarithm of N is odd.

Every point is a real and an imaginary vector, one lane per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.place import Place
from seqmix_tvm.rules.layout import number
from seqmix_tvm.writer import Writer

__all__ = ["LEAST", "Spectrum"]

Complex: TypeAlias = "tuple[Any, Any]"

LEAST = 4
"""The smallest N."""

_DOUBLINGS = 40
_LANES = 8


class Spectrum:
    """Transforms of N complex points, a number that is known at run time only."""

    def __init__(self, writer: Writer, needed: Any, dtype: str, table: Any) -> None:
        """N is a power of 2 so that 2 N is at least ``needed``; ``table`` holds 6 N numbers."""
        self.writer, self.dtype, self._table = writer, dtype, table
        size = writer.local("int64", 2)
        one, zero = tvm.integer(1), tvm.integer(0)
        writer.store(size, zero, tvm.integer(LEAST))
        writer.store(size, one, tvm.integer(LEAST.bit_length() - 1))
        with writer.loop(_DOUBLINGS, name="i"):
            more = writer.bind(size[zero] * tvm.integer(2) < needed, "more")
            writer.store(size, zero, tvm.select(more, size[zero] * tvm.integer(2), size[zero]))
            writer.store(size, one, size[one] + tvm.cast("int64", more))
        self.points = writer.bind(size[zero], "n")
        self._doublings = writer.bind(size[one], "doublings")

    def fill_table(self, wide: Any) -> None:
        """Write ``w ** j`` up to three quarters of a turn; ``wide`` is float64 memory of 2 N.

        The powers double in number: those that are there times the next one.
        """
        writer, N, table = self.writer, self.points, self._table
        writer.store(wide, tvm.integer(0), number(1, "float64"))
        writer.store(wide, N, number(0, "float64"))
        with writer.loop(self._doublings, name="p") as p:
            have = writer.bind(tvm.integer(1) << p, "have")
            unit = number(math.pi / 2, "float64") / f.from_integer("float64", N)
            angle = writer.bind(f.from_integer("float64", have) * unit, "angle")
            cos, sin = (writer.bind(f.from_libm(n, angle), n) for n in ("cos", "sin"))
            with writer.loop(have, name="j") as j:
                c, s = writer.bind(wide[j], "c"), writer.bind(wide[N + j], "s")
                writer.store(wide, have + j, c * cos - s * sin)
                writer.store(wide, N + have + j, s * cos + c * sin)
        with writer.loop(N, name="j") as j:
            c, s = (writer.bind(tvm.cast(self.dtype, wide[i]), "c") for i in (j, N + j))
            zero = number(0, self.dtype)
            for turn, (x, y) in enumerate(((c, s), (zero - s, c), (zero - c, zero - s))):
                writer.store(table, N * tvm.integer(turn) + j, x)
                writer.store(table, N * tvm.integer(3 + turn) + j, y)

    def spot(self, base: Any, point: Any) -> Any:
        """Where the real vector of a point is; the imaginary one follows it."""
        return base + point * tvm.integer(2 * _LANES)

    def clear(self, memory: Place, base: Any) -> None:
        """Make all points 0."""
        with (
            self.writer.loop(self.points, name="n") as n,
            self.writer.loop(2 * _LANES, "vectorized", "l") as lane,
        ):
            here = self.spot(base, n) + lane
            self.writer.store(memory.buffer, here, number(0, self.dtype))

    def turn(self, memory: Place, base: Any, back: bool) -> None:
        """Multiply every point n by ``w ** n``, or by its inverse over N."""
        writer = self.writer
        scale = number(1, self.dtype) / f.from_integer(self.dtype, self.points)
        scale = writer.bind(scale, "scale")
        with writer.loop(self.points, name="n") as n:
            w = self._power(n)
            w = (writer.bind(w[0] * scale), writer.bind(w[1] * scale)) if back else w
            with writer.loop(_LANES, "vectorized", "l") as lane:
                here = self.spot(base, n) + lane
                self._put(memory, here, _times(self._get(memory, here), w, back))

    def multiply(self, memory: Place, base: Any, other: Any) -> None:
        """Multiply the points at ``base`` by those at ``other``."""
        with (
            self.writer.loop(self.points, name="n") as n,
            self.writer.loop(_LANES, "vectorized", "l") as lane,
        ):
            here = self.spot(base, n) + lane
            x, y = self._get(memory, here), self._get(memory, self.spot(other, n) + lane)
            self._put(memory, here, _times(x, y, False))

    def forward(self, memory: Place, base: Any) -> None:
        """From points to frequencies."""
        with self.writer.loop(self._stages(), name="stage") as stage:
            self._fours(memory, base, stage, False)
        self.writer.choose(self._odd(), lambda: self._twos(memory, base))

    def backward(self, memory: Place, base: Any) -> None:
        """From frequencies to points, N times as large."""
        self.writer.choose(self._odd(), lambda: self._twos(memory, base))
        with self.writer.loop(self._stages(), name="stage") as stage:
            self._fours(memory, base, self._stages() - tvm.integer(1) - stage, True)

    def _stages(self) -> Any:
        return self._doublings >> tvm.integer(1)

    def _odd(self) -> Any:
        return tvm.equal(self._doublings & tvm.integer(1), tvm.integer(1))

    def _fours(self, memory: Place, base: Any, stage: Any, back: bool) -> None:
        """Combine points that are a quarter of a block apart; blocks shrink from stage to stage."""
        writer = self.writer
        quarter = self.points >> (stage * tvm.integer(2) + tvm.integer(2))
        quarter = writer.bind(quarter, "quarter")
        blocks = writer.bind(tvm.integer(1) << (stage * tvm.integer(2)), "blocks")
        with writer.loop(blocks, name="block") as block, writer.loop(quarter, name="j") as j:
            first = block * quarter * tvm.integer(4) + j
            starts = [
                writer.bind(self.spot(base, first + quarter * tvm.integer(i)), "at")
                for i in range(4)
            ]
            power = j * blocks * tvm.integer(4)
            turns = [self._power(power * tvm.integer(i)) for i in (1, 2, 3)]
            with writer.loop(_LANES, "vectorized", "l") as lane:
                places = [start + lane for start in starts]
                points = [self._get(memory, place) for place in places]
                combine = _back if back else _forth
                made = combine(points, turns)
                for place, (real, imaginary) in zip(places, made, strict=True):
                    self._put(memory, place, (real, imaginary))

    def _twos(self, memory: Place, base: Any) -> None:
        """Combine neighbours."""
        half = self.points >> tvm.integer(1)
        with (
            self.writer.loop(half, name="j") as j,
            self.writer.loop(_LANES, "vectorized", "l") as lane,
        ):
            here = self.spot(base, j * tvm.integer(2)) + lane
            there = here + tvm.integer(2 * _LANES)
            x, y = self._get(memory, here), self._get(memory, there)
            self._put(memory, here, _plus(x, y))
            self._put(memory, there, _minus(x, y))

    def _power(self, j: Any) -> Complex:
        three = self.points * tvm.integer(3)
        return (
            self.writer.bind(self._table[j], "cos"),
            self.writer.bind(self._table[three + j], "sin"),
        )

    def _get(self, memory: Place, here: Any) -> Complex:
        """The point of a lane, read before anything is written in its place."""
        bind, buffer = self.writer.bind, memory.buffer
        return bind(buffer[here], "re"), bind(buffer[here + tvm.integer(_LANES)], "im")

    def _put(self, memory: Place, here: Any, value: Complex) -> None:
        self.writer.store(memory.buffer, here, value[0])
        self.writer.store(memory.buffer, here + tvm.integer(_LANES), value[1])


def _plus(x: Complex, y: Complex) -> Complex:
    return x[0] + y[0], x[1] + y[1]


def _minus(x: Complex, y: Complex) -> Complex:
    return x[0] - y[0], x[1] - y[1]


def _by_i(x: Complex, y: Complex) -> tuple[Complex, Complex]:
    """``x + i y`` and ``x - i y``."""
    return (x[0] - y[1], x[1] + y[0]), (x[0] + y[1], x[1] - y[0])


def _times(x: Complex, w: Complex, conjugate: bool) -> Complex:
    """``x w``, or ``x`` times the conjugate of w."""
    if conjugate:
        return x[0] * w[0] + x[1] * w[1], x[1] * w[0] - x[0] * w[1]
    return x[0] * w[0] - x[1] * w[1], x[1] * w[0] + x[0] * w[1]


def _forth(points: Sequence[Complex], turns: Sequence[Complex]) -> list[Complex]:
    a, b, c, d = points
    even, odd = _plus(a, c), _plus(b, d)
    plus, minus = _by_i(_minus(a, c), _minus(b, d))
    return [
        _plus(even, odd),
        _times(_minus(even, odd), turns[1], True),
        _times(minus, turns[0], True),
        _times(plus, turns[2], True),
    ]


def _back(points: Sequence[Complex], turns: Sequence[Complex]) -> list[Complex]:
    a, b, c, d = points
    b, c, d = _times(b, turns[1], False), _times(c, turns[0], False), _times(d, turns[2], False)
    even, odd, sums = _plus(a, b), _minus(a, b), _plus(c, d)
    plus, minus = _by_i(odd, _minus(c, d))
    return [_plus(even, sums), plus, _minus(even, sums), minus]
