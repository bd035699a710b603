"""The long causal convolution: by transforms of eight filters at a time, or tap by tap.

B batch, D channels, C filters per channel, S sequence, P past, T past and sequence together, L
filter taps, N points of a transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from seqmix_ir.dims import Size, maximum_size, minimum_size
from seqmix_ir.graph import Op
from seqmix_ir.types import DType, TensorType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.spectrum import LEAST, Spectrum
from seqmix_tvm.place import COMPUTED, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["long_conv", "long_conv_scratch", "missing_long_conv"]

_LANES = 8
_SLOTS = 16
"""Tasks, each of which has memory for one group of filters and works through several groups."""

_FEW = 32
"""Outputs up to which each is the sum of its taps."""

Part: TypeAlias = "tuple[Callable[[Any, Any], Any], Any]"
"""What gives an element of a row, and the length."""


def missing_long_conv(op: Op) -> str | None:
    """Why there is no kernel: the channel of a filter must be known."""
    x, filter = op.operands[:2]
    if x is None or filter is None or not isinstance(x.type.shape[1], int):
        return "the number of channels is not known"
    return None if isinstance(filter.type.shape[0], int) else "the number of filters is not known"


def long_conv_scratch(op: Op) -> list[TensorType]:
    """Memory for two transforms per task, for the table, and for the table in float64."""
    x = present(op.operands[0])
    dtype: DType = "f64" if x.type.dtype == "f64" else "f32"
    if isinstance(x.type.shape[2], int) and x.type.shape[2] <= _FEW:
        return []
    most = _needed(op) + LEAST
    slots = min(_SLOTS, _groups(op))
    return [
        TensorType(dtype, (slots, 2, most, 2 * _LANES)),
        TensorType(dtype, (6, most)),
        TensorType("f64", (2, most)),
    ]


def long_conv(kernel: Kernel, op: Op) -> None:
    """Transforms where there are many outputs, sums where there are few."""
    S = present(op.operands[0]).type.shape[2]
    conv, before = _Conv(kernel, op), kernel.writer.apart
    kernel.writer.apart = True
    if not kernel.scratch:
        # In the body of a loop there is no memory for transforms.
        conv.by_taps()
    elif isinstance(S, int):
        (conv.by_taps if S <= _FEW else conv.by_transforms)()
    else:
        few = kernel.sizes(S) <= tvm.integer(_FEW)
        kernel.writer.choose(few, conv.by_taps, conv.by_transforms)
    kernel.writer.apart = before


def _needed(op: Op) -> Size:
    """The length of a convolution that wraps around onto no output that is kept."""
    x, filter = present(op.operands[0]), present(op.operands[1])
    S, T = x.type.shape[2], _total(op)
    return maximum_size(T, S + minimum_size(filter.type.shape[1], T) - 1)


def _total(op: Op) -> Size:
    history, S = op.operands[2], present(op.operands[0]).type.shape[2]
    return S if history is None else history.type.shape[2] + S


def _groups(op: Op) -> int:
    return -(-known(present(op.operands[1]).type.shape[0]) // _LANES)


class _Conv:
    def __init__(self, kernel: Kernel, op: Op) -> None:
        self.kernel, self.op, self.writer, self.frame = kernel, op, kernel.writer, kernel.frame
        self.x, self.filter = present(op.operands[0]), present(op.operands[1])
        self.history, self.y = op.operands[2], op.results[0]
        self.dtype = COMPUTED[self.x.type.dtype]
        self.B, D, self.S = self.x.type.shape
        self.D, self.rows = known(D), known(self.filter.type.shape[0])
        self.T = _total(op)
        self.taps = minimum_size(self.filter.type.shape[1], self.T)
        self.past = self.kernel.sizes(self.T - self.S)

    def by_taps(self) -> None:
        """Every output by itself."""

        def output(index: Any) -> None:
            b, row, t = index.axes
            taps = self.kernel.sizes(self.taps)
            new = self.writer.bind(tvm.minimum(taps, t + tvm.integer(1)), "new")
            total = self.writer.local(self.dtype, 1)
            zero = tvm.integer(0)
            self.writer.store(total, zero, number(0, self.dtype))
            with self.writer.loop(new, name="tap") as tap:
                term = self._tap(row, tap) * self._x(b, row, t - tap)
                self.writer.store(total, zero, total[zero] + term)
            if self.history is not None:
                self._old(total, b, row, t, taps)
            self.kernel.sink(index, total[zero])

        self.kernel.spread(self.y.type.shape, output, cost=64)

    def _old(self, total: Any, b: Any, row: Any, t: Any, taps: Any) -> None:
        """Add what the taps behind the new inputs find in the history, in vectors of sums."""
        writer, lanes, zero = self.writer, 2 * _LANES, tvm.integer(0)
        first = writer.bind(t + tvm.integer(1), "first")
        count = tvm.minimum(taps - first, self.past)
        count = writer.bind(tvm.maximum(count, zero), "count")
        full = writer.bind(tvm.call("floordiv", count, tvm.integer(lanes)), "full")
        parts = writer.filled(self.dtype, lanes, number(0, self.dtype), lanes)

        def term(i: Any) -> Any:
            past = self._past(b, row, self.past - tvm.integer(1) - i)
            return self._tap(row, first + i) * past

        with writer.loop(full, name="c") as c, writer.loop(lanes, "vectorized", "l") as lane:
            writer.store(parts, lane, parts[lane] + term(c * tvm.integer(lanes) + lane))
        with writer.loop(count - full * tvm.integer(lanes), name="r") as r:
            writer.store(total, zero, total[zero] + term(full * tvm.integer(lanes) + r))
        for lane in range(lanes):
            writer.store(total, zero, total[zero] + parts[tvm.integer(lane)])

    def by_transforms(self) -> None:
        """Group after group of filters: their transform, then that of each row of the batch."""
        memory, table, wide = self.kernel.scratch
        needed, writer = self.kernel.sizes(_needed(self.op)), self.writer
        spectrum = Spectrum(writer, needed, self.dtype, table.buffer)
        spectrum.fill_table(wide.buffer)
        groups = _groups(self.op)
        slots = min(_SLOTS, groups)
        room = self.kernel.sizes(_needed(self.op) + LEAST) * tvm.integer(2 * _LANES)

        def task(slot: Any) -> None:
            base = writer.bind(slot * room * tvm.integer(2), "base")
            count = tvm.call("floordiv", tvm.integer(groups - 1 + slots) - slot, tvm.integer(slots))
            with writer.loop(count, name="i") as i:
                group = writer.bind(slot + i * tvm.integer(slots), "group")
                self._group(spectrum, memory, base, base + room, group)

        # Written once: beside a transform, waking the threads costs nothing.
        with writer.loop(slots, "serial" if self.kernel.serial else "parallel", "slot") as slot:
            task(slot)

    def _group(self, spectrum: Spectrum, memory: Any, base: Any, other: Any, group: Any) -> None:
        """Eight filters, then all rows of the batch: one loop, so that both share the code."""
        writer, sizes, first = self.writer, self.kernel.sizes, group * tvm.integer(_LANES)
        with writer.loop(sizes(self.B) + tvm.integer(1), name="i") as i:
            b = writer.bind(tvm.maximum(i - tvm.integer(1), tvm.integer(0)), "b")
            filters = tvm.equal(i, tvm.integer(0))
            here = writer.bind(tvm.select(filters, other, base), "here")
            parts: list[Part] = [(lambda row, n: self._x(b, row, n), sizes(self.S))]
            if self.history is not None:
                parts.insert(0, (lambda row, n: self._past(b, row, n), self.past))
            spectrum.clear(memory, here)
            writer.choose(
                filters,
                lambda: self._read(spectrum, memory, here, first, [(self._tap, sizes(self.taps))]),
                lambda: self._read(spectrum, memory, here, first, parts),
            )
            spectrum.turn(memory, here, False)
            spectrum.forward(memory, here)

            def result() -> None:
                spectrum.multiply(memory, here, other)
                spectrum.backward(memory, here)
                spectrum.turn(memory, here, True)
                self._write(spectrum, memory, here, first, b)

            writer.choose(i > tvm.integer(0), result)

    def _read(
        self,
        spectrum: Spectrum,
        memory: Any,
        base: Any,
        first: Any,
        parts: list[Part],
    ) -> None:
        """Sequences behind each other, the second half as imaginary parts."""
        writer, N = self.writer, spectrum.points
        with writer.loop(_LANES, name="lane") as lane:
            row = writer.bind(tvm.minimum(first + lane, tvm.integer(self.rows - 1)), "row")
            start = tvm.integer(0)
            for element, length in parts:
                for half in range(2):
                    low, high = self._half(N, half, start, length)
                    spot = tvm.integer(half * _LANES) + lane
                    with writer.loop(high - low, name="n") as n:
                        here = start + low + n - (N if half else tvm.integer(0))
                        place = spectrum.spot(base, here) + spot
                        writer.store(memory.buffer, place, element(row, low + n))
                start = start + length

    def _half(self, N: Any, half: int, start: Any, length: Any) -> tuple[Any, Any]:
        """Which elements of a sequence that begins at ``start`` belong to a half."""
        middle = tvm.minimum(tvm.maximum(N - start, tvm.integer(0)), length)
        middle = self.writer.bind(middle, "middle")
        return (middle, length) if half else (tvm.integer(0), middle)

    def _write(self, spectrum: Spectrum, memory: Any, base: Any, first: Any, b: Any) -> None:
        """The outputs of the sequence, those of the past left out."""
        writer, N = self.writer, spectrum.points
        S, lanes = self.kernel.sizes(self.S), tvm.integer(_LANES)
        lanes = writer.bind(tvm.minimum(lanes, tvm.integer(self.rows) - first), "lanes")
        with writer.loop(lanes, name="lane") as lane:
            for half in range(2):
                low, high = self._half(N, half, self.past, S)
                with writer.loop(high - low, name="t") as t:
                    here = self.past + low + t - (N if half else tvm.integer(0))
                    place = spectrum.spot(base, here) + tvm.integer(half * _LANES) + lane
                    index = self.frame.index(self.y.type.shape, (b, first + lane, low + t))
                    self.kernel.sink(index, memory.buffer[place])

    def _tap(self, row: Any, tap: Any) -> Any:
        index = self.frame.index(self.filter.type.shape, (row, tap))
        return tvm.cast(self.dtype, self.frame.at(self.filter, index))

    def _channel(self, row: Any) -> Any:
        return row if self.rows == self.D else tvm.call("floormod", row, tvm.integer(self.D))

    def _x(self, b: Any, row: Any, t: Any) -> Any:
        index = self.frame.index(self.x.type.shape, (b, self._channel(row), t))
        return tvm.cast(self.dtype, self.frame.at(self.x, index))

    def _past(self, b: Any, row: Any, t: Any) -> Any:
        history = present(self.history)
        index = self.frame.index(history.type.shape, (b, self._channel(row), t))
        return tvm.cast(self.dtype, self.frame.at(history, index))
