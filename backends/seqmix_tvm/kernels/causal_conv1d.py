"""The short causal convolution of each channel, with the inputs it still needs as state.

B batch, D channels, S sequence, W taps.
"""

from __future__ import annotations

from typing import Any

from seqmix_ir.graph import Op
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, Index, known, present

__all__ = ["causal_conv1d", "missing_causal_conv1d"]

_SILU_COST = 8
_MOST_TAPS = 32
_FIRST = 64
"""Outputs that are computed from a copy of the tail and the first inputs behind each other."""


def missing_causal_conv1d(op: Op) -> str | None:
    """Why there is no kernel: all taps of an output are written out."""
    weight = op.operands[1]
    if weight is None or not isinstance(weight.type.shape[1], int):
        return "the number of taps is not known"
    taps = weight.type.shape[1]
    return None if taps <= _MOST_TAPS else f"{taps} taps are no short convolution"


def causal_conv1d(kernel: Kernel, op: Op) -> None:
    """Channel by channel along the sequence; for one input, along the channels."""
    B, D, S = present(op.operands[0]).type.shape
    cost = known(present(op.operands[1]).type.shape[1]) + _SILU_COST
    writer = kernel.writer

    def step() -> None:
        def body(index: Index) -> None:
            _Channel(kernel, op, *index.axes).step()

        kernel.spread((B, D), body, cost=cost)

    def sequence() -> None:
        kernel.rows((B, D), lambda at: _Channel(kernel, op, *at).run(), cost, S)

    before, writer.apart = writer.apart, True
    if S == 1:
        step()
    elif isinstance(S, int):
        sequence()
    else:
        writer.choose(tvm.equal(kernel.sizes(S), tvm.integer(1)), step, sequence)
    writer.apart = before


class _Channel:
    def __init__(self, kernel: Kernel, op: Op, b: Any, d: Any) -> None:
        self.kernel, self.op, self.b, self.d = kernel, op, b, d
        self.writer, self.frame = kernel.writer, kernel.frame
        self.x, self.weight = present(op.operands[0]), present(op.operands[1])
        self.bias, self.tail = op.operands[2], present(op.operands[3])
        self.dtype = COMPUTED[self.x.type.dtype]
        self.taps = known(self.weight.type.shape[1])

    def step(self) -> None:
        """Both results for one input."""
        zero = tvm.integer(0)
        seq = [self._tail(tvm.integer(w)) for w in range(self.taps - 1)] + [self._x(zero)]
        self._read_weights()
        self._output(zero, [tvm.cast(self.dtype, element) for element in seq])
        tail = self.op.results[1]
        for w, element in enumerate(seq[1:]):
            at = (self.b, self.d, tvm.integer(w))
            self.frame.save(tail, self.frame.index(tail.type.shape, at), element)

    def run(self) -> None:
        """Write both results of the channel."""
        writer, before = self.writer, tvm.integer(self.taps - 1)
        S = self.kernel.sizes(self.x.type.shape[2])
        self._read_weights()
        start = tvm.integer(0)
        if self.taps > 1:
            start = writer.bind(tvm.minimum(tvm.integer(_FIRST), S), "start")
            self._beginning(start)
        with writer.loop(S - start, name="t") as t:
            first = start + t - before
            self._output(start + t, [self._x(first + tvm.integer(w)) for w in range(self.taps)])
        if self.taps > 1:
            with writer.loop(before, name="w") as w:
                tail = self.op.results[1]
                index = self.frame.index(tail.type.shape, (self.b, self.d, w))
                self.frame.save(tail, index, self._last(S + w))

    def _beginning(self, count: Any) -> None:
        """The first outputs, some of which see the tail."""
        writer, before = self.writer, tvm.integer(self.taps - 1)
        joined = writer.local(self.dtype, _FIRST + self.taps - 1)
        with writer.loop(before, name="w") as w:
            writer.store(joined, w, tvm.cast(self.dtype, self._tail(w)))
        with writer.loop(count, name="t") as t:
            writer.store(joined, before + t, tvm.cast(self.dtype, self._x(t)))
        with writer.loop(count, name="t") as t:
            self._output(t, [joined[t + tvm.integer(w)] for w in range(self.taps)])

    def _output(self, t: Any, inputs: list[Any]) -> None:
        total = self.first
        for weight, x in zip(self.weights, inputs, strict=True):
            term = weight * tvm.cast(self.dtype, x)
            total = term if total is None else total + term
        total = self.writer.bind(total, "sum")
        if self.op.defn.attributes()["activation"] == "silu":
            total = self.writer.bind(total * f.sigmoid(total), "silu")
        y = self.op.results[0]
        index = self.frame.index(y.type.shape, (self.b, self.d, t))
        self.frame.save(y, index, total)

    def _read_weights(self) -> None:
        self.weights = [self._weight(w) for w in range(self.taps)]
        self.first = None if self.bias is None else self._bias()

    def _weight(self, w: int) -> Any:
        index = self.frame.index(self.weight.type.shape, (self.d, tvm.integer(w)))
        return self.writer.bind(tvm.cast(self.dtype, self.frame.at(self.weight, index)), "w")

    def _bias(self) -> Any:
        bias = present(self.bias)
        index = self.frame.index(bias.type.shape, (self.d,))
        return self.writer.bind(tvm.cast(self.dtype, self.frame.at(bias, index)), "bias")

    def _x(self, t: Any) -> Any:
        return self.frame.at(self.x, self.frame.index(self.x.type.shape, (self.b, self.d, t)))

    def _tail(self, w: Any) -> Any:
        index = self.frame.index(self.tail.type.shape, (self.b, self.d, w))
        return self.frame.at(self.tail, index)

    def _last(self, place: Any) -> Any:
        """An element of tail and inputs behind each other; one of both is read for nothing."""
        before, zero = tvm.integer(self.taps - 1), tvm.integer(0)
        old = self._tail(tvm.minimum(place, before - tvm.integer(1)))
        new = self._x(tvm.maximum(place - before, zero))
        return tvm.select(place < before, old, new)
