"""What both forms of attention read: operands by row, who sees whom, where results go.

A row ``r`` of the ``H / G * S`` that share the keys of a head ``g`` is query ``r % S`` of head
``g * H / G + r // S``. The largest logit so far scales what is summed up (Milakov and Gimelshein
2018; Dao et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from seqmix_ir.graph import Op
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["Rows"]


class Rows:
    """The operands of one attention, and its rows."""

    def __init__(self, kernel: Kernel, op: Op) -> None:
        """Take the op apart."""
        self.kernel, self.writer, self.frame = kernel, kernel.writer, kernel.frame
        self.q, self.k, self.v, self.qp, self.kp = map(present, op.operands[:5])
        self.bias, self.sinks = op.operands[5:]
        self.y = op.results[0]
        self.dtype = COMPUTED[self.q.type.dtype]
        self.B, _, self.S, _ = self.q.type.shape
        self.H, self.K = known(self.q.type.shape[1]), known(self.q.type.shape[3])
        self.V = known(self.v.type.shape[3])
        self.G = known(self.k.type.shape[1])
        self.count = self.H // self.G * self.S
        has = op.defn.attributes()
        self.causal, self.window = has["causal"], has["window"]
        self.scale = has["scale"] or 1 / math.sqrt(max(self.K, 1))

    @property
    def T(self) -> Any:  # noqa: N802
        """The number of keys."""
        return self.kernel.sizes(self.k.type.shape[2])

    def number(self, value: float) -> Any:
        """A number of the type in which sums are kept."""
        return number(value, self.dtype)

    @property
    def low(self) -> Any:
        """The logit of a key that is not seen."""
        return self.number(-math.inf)

    def head(self, g: Any, r: Any) -> Any:
        """The head of a row."""
        share = tvm.integer(self.H // self.G)
        return g * share + tvm.call("floordiv", r, self.kernel.sizes(self.S))

    def query(self, r: Any) -> Any:
        """The query of a row."""
        return tvm.call("floormod", r, self.kernel.sizes(self.S))

    def position(self, b: Any, s: Any) -> Any:
        """Where a query stands; -1 for padding."""
        return self.frame.at(self.qp, self.frame.index(self.qp.type.shape, (b, s)))

    def key_position(self, b: Any, t: Any) -> Any:
        """Where a key stands; -1 for an empty slot."""
        return self.frame.at(self.kp, self.frame.index(self.kp.type.shape, (b, t)))

    def sees(self, query: Any, key: Any) -> Any:
        """Whether the query at a position sees the key at another."""
        zero = tvm.integer(0)
        seen = tvm.both(key >= zero, query >= zero)
        if self.causal:
            seen = tvm.both(seen, key <= query)
        if self.window:
            seen = tvm.both(seen, query - key < tvm.integer(self.window))
        return seen

    def query_element(self, b: Any, h: Any, s: Any, k: Any) -> Any:
        """An element of a query, which carries the scale of the logits."""
        index = self.frame.index(self.q.type.shape, (b, h, s, k))
        return self.frame.at(self.q, index) * self.number(self.scale)

    def key_reader(self, b: Any, g: Any, t: Any) -> Callable[[Any], Any]:
        """The elements of a key, from where it starts."""
        return self._reader(self.k, b, g, t, self.K)

    def value_reader(self, b: Any, g: Any, t: Any) -> Callable[[Any], Any]:
        """The elements of a value, from where it starts."""
        return self._reader(self.v, b, g, t, self.V)

    def _reader(self, of: Any, b: Any, g: Any, t: Any, size: int) -> Callable[[Any], Any]:
        start = self.frame.index(of.type.shape, (b, g, t, tvm.integer(0))).flat
        start = self.writer.bind(start, "start")
        at, index, shape = self.frame.at, self.frame.index, of.type.shape
        return lambda place: at(of, index(shape, flat=start + place))

    def biased(self, logit: Any, b: Any, h: Any, s: Any, t: Any) -> Any:
        """A logit and the bias of its query and key, if there is one."""
        if self.bias is None:
            return logit
        shape = (*self.q.type.shape[:3], self.k.type.shape[2])
        found = self.frame.broadcast(self.bias, self.frame.index(shape, (b, h, s, t)))
        return logit + tvm.cast(self.dtype, found)

    def first_top(self, h: Any) -> Any:
        """The largest logit before any key: that of the head's sink."""
        if self.sinks is None:
            return self.low
        found = self.frame.at(self.sinks, self.frame.index(self.sinks.type.shape, (h,)))
        return tvm.cast(self.dtype, found)

    @property
    def first_total(self) -> Any:
        """The sum of weights before any key."""
        return self.number(0 if self.sinks is None else 1)

    def base(self, top: Any) -> Any:
        """What is subtracted from logits: nothing of a row that has seen nothing yet.

        Its top is -inf, and -inf - -inf is NaN.
        """
        return tvm.select(top < self.number(-3e38), self.number(0), top)

    def quotient(self, total: Any) -> Any:
        """What the sums of a row are multiplied with; a row that sees nothing stays 0."""
        none = tvm.both(total <= self.number(0), total >= self.number(0))
        return self.number(1) / tvm.select(none, self.number(1), total)

    def give(self, b: Any, h: Any, s: Any, element: Callable[[Any], Any]) -> None:
        """Pass a row of results on."""
        with self.writer.loop(self.V, name="l") as lane:
            index = self.frame.index(self.y.type.shape, (b, h, s, lane))
            self.kernel.sink(index, element(lane))

    def tasks(self, count: Any, task: Callable[[Any], None]) -> None:
        """A loop over tasks, in parallel outside of other kernels."""
        kind = "serial" if self.kernel.serial else "parallel"
        with self.writer.loop(count, kind, "task") as place:
            task(place)
