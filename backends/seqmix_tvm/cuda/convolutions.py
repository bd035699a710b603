"""Causal convolutions on a GPU: a thread per output, or tiles of a Toeplitz matrix.

A long convolution is the product with a Toeplitz matrix: of a tile of 128 outputs by 128 taps, 255
inputs and 128 taps lie in shared memory, and each thread makes one output.

B batch, D channels, S sequence, P past, W taps of a short filter, L taps of a long one.
"""

from __future__ import annotations

from typing import Any, cast

from seqmix_ir.dims import minimum_size
from seqmix_ir.graph import Op
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import CudaKernel, ceildiv_expr
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, Index, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["causal_conv1d", "long_conv"]

_WARPS = 4


def causal_conv1d(kernel: Kernel, op: Op) -> None:
    """``causal_conv1d``: every output reads its own taps; then the inputs that are kept."""
    short = _Short(kernel, op)
    y, tail = op.results
    kernel.spread(y.type.shape, short.output)
    if tail.type.shape[-1] != 0:
        kernel.spread(tail.type.shape, short.kept)


class _Short:
    def __init__(self, kernel: Kernel, op: Op) -> None:
        self.kernel, self.op, self.frame, self.writer = kernel, op, kernel.frame, kernel.writer
        self.x, self.weight = present(op.operands[0]), present(op.operands[1])
        self.bias, self.tail = op.operands[2], present(op.operands[3])
        self.dtype = COMPUTED[self.x.type.dtype]
        self.taps = known(self.weight.type.shape[1])

    def output(self, index: Index) -> None:
        b, d, t = index.axes
        total = number(0, self.dtype)
        if self.bias is not None:
            here = self.frame.index(self.bias.type.shape, (d,))
            total = tvm.cast(self.dtype, self.frame.at(self.bias, here))
        for w in range(self.taps):
            at = self.frame.index(self.weight.type.shape, (d, tvm.integer(w)))
            weight = tvm.cast(self.dtype, self.frame.at(self.weight, at))
            total = self.writer.hide(total + weight * self._input(b, d, t + tvm.integer(w)))
        if self.op.defn.attributes()["activation"] == "silu":
            total = self.writer.bind(total * f.sigmoid(total), "silu")
        self.frame.save(self.op.results[0], index, total)

    def kept(self, index: Index) -> None:
        b, d, w = index.axes
        S = self.kernel.sizes(self.x.type.shape[2])
        self.frame.save(self.op.results[1], index, self._input(b, d, S + w))

    def _input(self, b: Any, d: Any, place: Any) -> Any:
        """An element of tail and inputs behind each other; one of both is read for nothing."""
        place = self.writer.bind(place, "place")
        before, zero, frame = tvm.integer(self.taps - 1), tvm.integer(0), self.frame
        new = self.writer.bind(tvm.maximum(place - before, zero), "t")
        found = frame.at(self.x, frame.index(self.x.type.shape, (b, d, new)))
        if self.taps == 1:
            return tvm.cast(self.dtype, found)
        old = self.writer.bind(tvm.minimum(place, before - tvm.integer(1)), "w")
        held = frame.at(self.tail, frame.index(self.tail.type.shape, (b, d, old)))
        chosen = tvm.select(place < before, tvm.cast(self.dtype, held), tvm.cast(self.dtype, found))
        return self.writer.bind(chosen, "input")


def long_conv(kernel: Kernel, op: Op) -> None:
    """``long_conv``: a block per tile of outputs of one filter."""
    made, conv = cast("CudaKernel", kernel), _Long(cast("CudaKernel", kernel), op)
    B, rows, S = conv.y.type.shape
    tiles = ceildiv_expr(kernel.sizes(S), conv.size)

    def task(place: Any) -> None:
        bind = kernel.writer.bind
        rest = bind(tvm.call("floordiv", place, tiles), "rest")
        first = bind(tvm.call("floormod", place, tiles) * tvm.integer(conv.size), "first")
        b, row = (tvm.call(n, rest, kernel.sizes(rows)) for n in ("floordiv", "floormod"))
        conv.tile(bind(b, "b"), bind(row, "row"), first)

    made.blocks_over(kernel.sizes(B) * kernel.sizes(rows) * tiles, _WARPS, task)


class _Long:
    def __init__(self, kernel: CudaKernel, op: Op) -> None:
        self.kernel, self.writer, self.frame = kernel, kernel.threads, kernel.frame
        self.x, self.filter = present(op.operands[0]), present(op.operands[1])
        self.history, self.y = op.operands[2], op.results[0]
        self.dtype = COMPUTED[self.x.type.dtype]
        self.D, self.rows = known(self.x.type.shape[1]), known(self.filter.type.shape[0])
        S = self.x.type.shape[2]
        T = S if self.history is None else self.history.type.shape[2] + S
        self.past = kernel.sizes(T - S)
        self.taps = kernel.sizes(minimum_size(self.filter.type.shape[1], T))
        self.S = kernel.sizes(S)

    @property
    def size(self) -> int:
        """Outputs, and taps, of a tile."""
        return self.writer.threads.count if self.writer.inside else 32 * _WARPS

    def tile(self, b: Any, row: Any, first: Any) -> None:
        """Outputs side by side; taps that reach before the first input are left out."""
        writer, size = self.writer, self.size
        taps, inputs = writer.shared(self.dtype, size), writer.shared(self.dtype, 2 * size)
        total, zero = writer.local(self.dtype, 1), tvm.integer(0)
        writer.store(total, zero, number(0, self.dtype))
        thread = writer.bind(writer.threads.place, "thread")
        reach = tvm.minimum(self.taps, self.past + first + tvm.integer(size))
        with writer.loop(ceildiv_expr(reach, size), name="step") as step:
            tap0 = writer.bind(step * tvm.integer(size), "tap0")
            writer.store(taps, thread, self._tap(row, tap0 + thread))
            start = writer.bind(self.past + first - tap0 - tvm.integer(size), "start")
            for half in range(2):
                spot = thread + tvm.integer(half * size)
                writer.store(inputs, spot, self._input(b, row, start + spot))
            writer.sync()
            with writer.loop(size, name="i") as i:
                term = taps[i] * inputs[thread + tvm.integer(size) - i]
                writer.store(total, zero, total[zero] + term)
            writer.sync()
        t = writer.bind(first + thread, "t")

        def give() -> None:
            index = self.frame.index(self.y.type.shape, (b, row, t))
            self.kernel.sink(index, total[zero])

        writer.choose(t < self.S, give)

    def _tap(self, row: Any, tap: Any) -> Any:
        """A tap, 0 past the last one."""
        tap = self.writer.bind(tap, "tap")
        place = self.writer.bind(tvm.minimum(tap, self.taps - tvm.integer(1)), "place")
        index = self.frame.index(self.filter.type.shape, (row, place))
        found = tvm.cast(self.dtype, self.frame.at(self.filter, index))
        return tvm.select(tap < self.taps, found, number(0, self.dtype))

    def _input(self, b: Any, row: Any, place: Any) -> Any:
        """An element of past and sequence behind each other, 0 before and behind them."""
        bind, zero, one = self.writer.bind, tvm.integer(0), tvm.integer(1)
        channel = row if self.rows == self.D else tvm.call("floormod", row, tvm.integer(self.D))
        place = bind(place, "place")
        new = bind(place - self.past, "t")
        within = bind(tvm.minimum(tvm.maximum(new, zero), self.S - one), "within")
        index = self.frame.index(self.x.type.shape, (b, channel, within))
        found = tvm.cast(self.dtype, self.frame.at(self.x, index))
        there = tvm.both(new >= zero, new < self.S)
        chosen = bind(tvm.select(there, found, number(0, self.dtype)), "input")
        if self.history is None:
            return chosen
        return self._older(b, channel, place, chosen)

    def _older(self, b: Any, channel: Any, place: Any, otherwise: Any) -> Any:
        """An element of the past, which may be empty: nothing is read of it then."""
        writer, history, zero = self.writer, present(self.history), tvm.integer(0)
        held = writer.local(self.dtype, 1)
        writer.store(held, zero, otherwise)

        def read() -> None:
            index = self.frame.index(history.type.shape, (b, channel, place))
            writer.store(held, zero, tvm.cast(self.dtype, self.frame.at(history, index)))

        writer.choose(tvm.both(place >= zero, place < self.past), read)
        return held[zero]
