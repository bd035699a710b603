"""Softmax attention on a GPU: a block per group of rows that share keys, keys a tile at a time.

A warp computes the logits of a row with 32 keys, one per lane, and keeps the row's largest logit
and its sum; the weights lie in shared memory, from where all threads add up values in registers.
A tile of keys that no row of the block sees is skipped.

G key heads, K key size, V value size, R rows of a block, T keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from seqmix_ir.graph import Op
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import BlockKernel, CudaKernel, ceildiv_expr
from seqmix_tvm.cuda.writer import LANES
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.attention_rows import Rows

__all__ = ["attention"]

_WARPS = 4
_MANY, _FEW = 16, 4
"""Rows of a block, where there are many and where there are few."""

_ROOM = 44 << 10
"""Bytes of shared memory that operands may take up."""


def attention(kernel: Kernel, op: Op) -> None:
    """Blocks of sixteen rows, or of four where there are fewer, as in decoding."""
    rows, made = Rows(kernel, op), cast("CudaKernel", kernel)
    count = rows.count
    few, many = partial(_attention, made, rows, _FEW), partial(_attention, made, rows, _MANY)
    if isinstance(kernel, BlockKernel) or (isinstance(count, int) and count < _MANY):
        few()
    elif isinstance(count, int):
        many()
    else:
        kernel.writer.choose(kernel.sizes(count) >= tvm.integer(_MANY), many, few)


def _attention(kernel: CudaKernel, rows: Rows, R: int) -> None:
    blocks = ceildiv_expr(kernel.sizes(rows.count), R)

    def task(place: Any) -> None:
        bind = kernel.writer.bind
        rest = bind(tvm.call("floordiv", place, blocks), "rest")
        first = bind(tvm.call("floormod", place, blocks) * tvm.integer(R), "first")
        b = bind(tvm.call("floordiv", rest, tvm.integer(rows.G)), "b")
        g = bind(tvm.call("floormod", rest, tvm.integer(rows.G)), "g")
        _Block(kernel, rows, R, b, g, first).run()

    kernel.blocks_over(kernel.sizes(rows.B) * tvm.integer(rows.G) * blocks, _WARPS, task)


class _Block:
    """Some rows of a key head; those past the last one repeat it, and go nowhere."""

    def __init__(self, kernel: CudaKernel, rows: Rows, R: int, b: Any, g: Any, first: Any) -> None:
        self.kernel, self.rows, self.writer = kernel, rows, kernel.threads
        self.R, self.b, self.g, self.first = R, b, g, first
        self.threads = self.writer.threads
        self.each = -(-R * rows.V // self.threads.count)
        self._allocate()

    def _allocate(self) -> None:
        rows, shared, dtype = self.rows, self.writer.shared, self.rows.dtype
        self.top, self.total, self.factor = (shared(dtype, self.R) for _ in range(3))
        self.positions = shared("int64", self.R)
        self.weights = shared(dtype, self.R * LANES)
        room = _ROOM // tvm.bytes_of(dtype) - self.R * (LANES + 8)
        self.queries, self.keys, self.values = None, None, None
        # A row of keys is read by a lane: an odd pitch spreads them over the banks.
        self.pitch = rows.K | 1
        if (need := self.R * rows.K) <= room:
            self.queries, room = shared(dtype, max(need, 1)), room - need
        if (need := LANES * self.pitch) <= room:
            self.keys, room = shared(dtype, need), room - need
        if (need := LANES * rows.V) <= room:
            self.values = shared(dtype, need)
        self.sums = self.writer.filled(dtype, self.each, rows.number(0), 1)

    def run(self) -> None:
        """All tiles of keys, then the quotients."""
        writer, T = self.writer, self.rows.T
        self._begin()
        writer.sync()
        nearest, farthest = self._ends()
        with writer.loop(ceildiv_expr(T, LANES), name="tile") as tile:
            t = writer.bind(tile * tvm.integer(LANES), "t0")
            writer.choose(self._seen(t, nearest, farthest), lambda: self._tile(t))
        self._finish()

    def _row(self, r: Any) -> tuple[Any, Any]:
        """Head and query of a row of the block."""
        bind = self.writer.bind
        last = self.kernel.sizes(self.rows.count) - tvm.integer(1)
        row = bind(tvm.minimum(self.first + r, last), "row")
        return bind(self.rows.head(self.g, row), "h"), bind(self.rows.query(row), "s")

    def _begin(self) -> None:
        """The rows: where they stand, their queries; nothing is summed up yet."""
        rows, store, size = self.rows, self.writer.store, tvm.integer(max(self.rows.K, 1))

        def row(r: Any) -> None:
            h, s = self._row(r)
            store(self.positions, r, rows.position(self.b, s))
            store(self.top, r, rows.first_top(h))
            store(self.total, r, rows.first_total)

        def element(e: Any) -> None:
            h, s = self._row(tvm.call("floordiv", e, size))
            k = tvm.call("floormod", e, size)
            store(self.queries, e, rows.query_element(self.b, h, s, k))

        self.kernel.turns(self.R, row)
        if self.queries is not None and rows.K:
            self.kernel.turns(self.R * rows.K, element)

    def _ends(self) -> tuple[Any, Any]:
        """The smallest and the largest position of the rows."""
        writer, found = self.writer, []
        for pick in (tvm.minimum, tvm.maximum):
            end = writer.local("int64", 1)
            writer.store(end, tvm.integer(0), self.positions[tvm.integer(0)])
            with writer.loop(self.R, name="r") as r:
                writer.store(end, tvm.integer(0), pick(end[tvm.integer(0)], self.positions[r]))
            found.append(writer.bind(end[tvm.integer(0)], "end"))
        return found[0], found[1]

    def _key(self, t: Any) -> Any:
        """The position of a key; -1 past the last one."""
        there = self.writer.bind(t < self.rows.T, "there")
        last = self.rows.T - tvm.integer(1)
        found = self.rows.key_position(self.b, self.writer.bind(tvm.minimum(t, last), "t"))
        none = tvm.integer(-1)
        return self.writer.bind(tvm.select(there, tvm.cast("int64", found), none), "key")

    def _seen(self, t: Any, nearest: Any, farthest: Any) -> Any:
        """Whether some row may see some key of a tile; every warp finds the same."""
        rows, key = self.rows, self._key(t + self.threads.lane)
        seen = key >= tvm.integer(0)
        if rows.causal:
            seen = tvm.both(seen, key <= farthest)
        if rows.window:
            low = tvm.maximum(nearest, tvm.integer(0))
            seen = tvm.both(seen, low - key < tvm.integer(rows.window))
        some = self.writer.over_warp(tvm.cast("int32", seen), tvm.maximum)
        return some > tvm.integer(0, "int32")

    def _tile(self, t: Any) -> None:
        """What 32 keys add."""
        self._copy(self.keys, self.rows.key_reader, t, self.rows.K, self.pitch)
        self._copy(self.values, self.rows.value_reader, t, self.rows.V, self.rows.V)
        self.writer.sync()
        self.kernel.turns(self.R * LANES, lambda e: self._weigh(t, e))
        self.writer.sync()
        for i in range(self.each):
            self._add(i, t)
        self.writer.sync()

    def _copy(self, target: Any, reader: Any, t: Any, size: int, pitch: int) -> None:
        if target is None or not size:
            return

        def element(e: Any) -> None:
            j, i = (tvm.call(n, e, tvm.integer(size)) for n in ("floordiv", "floormod"))
            found = self._element(reader, t + j, i)
            self.writer.store(target, j * tvm.integer(pitch) + i, found)

        self.kernel.turns(LANES * size, element)

    def _element(self, reader: Any, t: Any, i: Any) -> Any:
        """An element of a key or a value; those past the last one repeat it."""
        last = self.rows.T - tvm.integer(1)
        return reader(self.b, self.g, self.writer.bind(tvm.minimum(t, last), "t"))(i)

    def _weigh(self, t: Any, e: Any) -> None:
        """The logit of a row and a key, and with those of the other lanes, its weight."""
        writer, rows = self.writer, self.rows
        r = writer.bind(tvm.call("floordiv", e, tvm.integer(LANES)), "r")
        here = writer.bind(t + self.threads.lane, "t")
        logit = self._logit(r, here)
        before = writer.hide(self.top[r])
        top = writer.bind(tvm.maximum(before, writer.over_warp(logit, tvm.maximum)), "top")
        base = writer.bind(rows.base(top), "base")
        weight = writer.hide(f.exp(logit - base))
        part = writer.over_warp(weight, lambda a, b: a + b)
        writer.store(self.weights, e, weight)

        def keep() -> None:
            factor = writer.bind(f.exp(before - base), "factor")
            writer.store(self.factor, r, factor)
            writer.store(self.top, r, top)
            writer.store(self.total, r, self.total[r] * factor + part)

        writer.choose(tvm.equal(self.threads.lane, tvm.integer(0)), keep)

    def _logit(self, r: Any, t: Any) -> Any:
        writer, rows, zero = self.writer, self.rows, tvm.integer(0)
        h, s = self._row(r)
        place = writer.bind(tvm.minimum(t, rows.T - tvm.integer(1)), "place")
        query, key = self._query(r, h, s), self._key_element(place)
        total = writer.local(rows.dtype, 1)
        writer.store(total, zero, rows.number(0))
        with writer.loop(rows.K, name="k") as k:
            writer.store(total, zero, total[zero] + query(k) * key(k))
        found = rows.biased(total[zero], self.b, h, s, place)
        seen = rows.sees(writer.bind(self.positions[r], "position"), self._key(t))
        return writer.hide(tvm.select(seen, found, rows.low))

    def _query(self, r: Any, h: Any, s: Any) -> Callable[[Any], Any]:
        queries = self.queries
        if queries is None:
            return lambda k: self.rows.query_element(self.b, h, s, k)
        start = self.writer.bind(r * tvm.integer(self.rows.K), "start")
        return lambda k: queries[start + k]

    def _key_element(self, t: Any) -> Callable[[Any], Any]:
        keys = self.keys
        if keys is None:
            return self.rows.key_reader(self.b, self.g, t)
        start = self.writer.bind(self.threads.lane * tvm.integer(self.pitch), "start")
        return lambda k: keys[start + k]

    def _spot(self, i: int) -> tuple[Any, Any]:
        """Row and column of one of the thread's sums."""
        place = self.threads.place + tvm.integer(i * self.threads.count)
        size = tvm.integer(self.rows.V)
        r, column = (tvm.call(n, place, size) for n in ("floordiv", "floormod"))
        return self.writer.bind(r, "r"), self.writer.bind(column, "column")

    def _add(self, i: int, t: Any) -> None:
        """Add the values of a tile to one of the thread's sums."""
        writer, V = self.writer, tvm.integer(self.rows.V)
        r, column = self._spot(i)
        spot = tvm.integer(i)

        def add() -> None:
            writer.store(self.sums, spot, self.sums[spot] * self.factor[r])
            start = writer.bind(r * tvm.integer(LANES), "start")
            with writer.loop(LANES, name="j") as j:
                if self.values is None:
                    value = self._element(self.rows.value_reader, t + j, column)
                else:
                    value = self.values[j * V + column]
                term = self.weights[start + j] * value
                writer.store(self.sums, spot, self.sums[spot] + term)

        self._inside(i, r, add)

    def _inside(self, i: int, r: Any, body: Callable[[], None]) -> None:
        """What is done only where a sum is one of a row."""
        if (i + 1) * self.threads.count <= self.R * self.rows.V:
            body()
        else:
            self.writer.choose(r < tvm.integer(self.R), body)

    def _finish(self) -> None:
        rows, writer = self.rows, self.writer
        writer.sync()
        count = self.kernel.sizes(rows.count)
        for i in range(self.each):
            r, column = self._spot(i)

            def give(r: Any = r, column: Any = column, i: int = i) -> None:
                h, s = self._row(r)
                element = self.sums[tvm.integer(i)] * rows.quotient(self.total[r])
                index = rows.frame.index(rows.y.type.shape, (self.b, h, s, column))
                self.kernel.sink(index, writer.bind(element, "y"))

            here = tvm.both(r < tvm.integer(self.R), self.first + r < count)
            writer.choose(here, give)
