"""Attention of few rows: each by itself, as decoding needs it.

All rows of a key head read its keys and values from the second-level cache after the first of them
did, and as many tasks as rows keep the threads busy. Dots of several keys are computed at once, so
that none waits for the other.

B batch, H query heads, G key heads, T keys, K key size, V value size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import LANES
from seqmix_tvm.kernels.attention_rows import Rows
from seqmix_tvm.kernels.tile import PANEL, accumulated_tile

__all__ = ["row_attention"]

_KEYS = 64
"""Keys of a block."""

_TOGETHER = 4
"""Keys whose dots are computed at once."""

_WIDE = 4
"""Panels of columns of the values that are summed up at once."""


def row_attention(rows: Rows) -> None:
    """A task per row."""
    writer, sizes = rows.writer, rows.kernel.sizes
    count = sizes(rows.count)

    def task(place: Any) -> None:
        rest = tvm.call("floordiv", place, count)
        row = writer.bind(tvm.call("floormod", place, count), "row")
        b = writer.bind(tvm.call("floordiv", rest, tvm.integer(rows.G)), "b")
        g = writer.bind(tvm.call("floormod", rest, tvm.integer(rows.G)), "g")
        _Row(rows, b, g, row).run()

    rows.tasks(sizes(rows.B) * tvm.integer(rows.G) * count, task)


class _Row:
    """One query of one head."""

    def __init__(self, rows: Rows, b: Any, g: Any, row: Any) -> None:
        self.rows, self.writer, self.dtype = rows, rows.writer, rows.dtype
        self.b, self.g = b, g
        self.h = self.writer.bind(rows.head(g, row), "h")
        self.s = self.writer.bind(rows.query(row), "s")
        self.position = self.writer.bind(rows.position(b, self.s), "position")
        self.query = self.writer.local(self.dtype, max(rows.K, 1))
        self.logits = self.writer.local(self.dtype, _KEYS)
        self.sums = self.writer.local(self.dtype, rows.V)
        self.held = self.writer.local(self.dtype, 2)

    def run(self) -> None:
        """All blocks of keys, then the quotient."""
        rows, store = self.rows, self.writer.store
        self.top, self.total = tvm.integer(0), tvm.integer(1)
        with self.writer.loop(rows.K, name="k") as k:
            store(self.query, k, rows.query_element(self.b, self.h, self.s, k))
        with self.writer.loop(rows.V, name="l") as lane:
            store(self.sums, lane, rows.number(0))
        store(self.held, self.top, rows.first_top(self.h))
        store(self.held, self.total, rows.first_total)
        with self.writer.loop(self._blocks(rows.T), name="block") as block:
            t = self.writer.bind(block * tvm.integer(_KEYS), "t0")
            count = self.writer.bind(tvm.minimum(tvm.integer(_KEYS), rows.T - t), "count")
            seen = self._seen(t, count)
            self.writer.choose(seen, partial(self._keys, t, count))
        scale = self.writer.bind(rows.quotient(self.held[self.total]), "scale")
        rows.give(self.b, self.h, self.s, lambda lane: self.sums[lane] * scale)

    def _blocks(self, T: Any) -> Any:
        return tvm.call("floordiv", T + tvm.integer(_KEYS - 1), tvm.integer(_KEYS))

    def _seen(self, t: Any, count: Any) -> Any:
        """Whether the row sees any key of a block."""
        some, zero = self.writer.local("int32", 1), tvm.integer(0)
        self.writer.store(some, zero, tvm.integer(0, "int32"))
        with self.writer.loop(count, name="t") as i:
            seen = self.rows.sees(self.position, self.rows.key_position(self.b, t + i))
            self.writer.store(some, zero, some[zero] | tvm.cast("int32", seen))
        return some[zero] > tvm.integer(0, "int32")

    def _keys(self, t: Any, count: Any) -> None:
        """What a block of keys adds."""
        full = tvm.call("floordiv", count, tvm.integer(_TOGETHER))
        with self.writer.loop(full, name="c") as c:
            self._dots(t, self.writer.bind(c * tvm.integer(_TOGETHER), "i"), _TOGETHER)
        done = full * tvm.integer(_TOGETHER)
        with self.writer.loop(count - done, name="rest") as rest:
            self._dots(t, self.writer.bind(done + rest, "i"), 1)
        with self.writer.loop(count, name="t") as i:
            logit = self.rows.biased(self.logits[i], self.b, self.h, self.s, t + i)
            seen = self.rows.sees(self.position, self.rows.key_position(self.b, t + i))
            self.writer.store(self.logits, i, tvm.select(seen, logit, self.rows.low))
        self._weigh(count)
        step = _WIDE * PANEL
        for column in range(0, self.rows.V, step):
            self._values(t, count, column, min(step, self.rows.V - column))

    def _dots(self, t: Any, i: Any, together: int) -> None:
        """The logits of some keys side by side."""
        K, writer = self.rows.K, self.writer
        keys = [
            self.rows.key_reader(self.b, self.g, t + i + tvm.integer(j)) for j in range(together)
        ]
        zero = self.rows.number(0)
        parts = writer.filled(self.dtype, together * LANES, zero, LANES)
        with writer.loop(K // LANES, name="c") as c:
            for j, key in enumerate(keys):
                with writer.loop(LANES, "vectorized", "l") as lane:
                    k, spot = c * tvm.integer(LANES) + lane, tvm.integer(j * LANES) + lane
                    writer.store(parts, spot, parts[spot] + self.query[k] * key(k))
        for j, key in enumerate(keys):
            pieces = [parts[tvm.integer(j * LANES + lane)] for lane in range(LANES)]
            left = (tvm.integer(k) for k in range(K // LANES * LANES, K))
            pieces += [self.query[k] * key(k) for k in left]
            writer.store(self.logits, i + tvm.integer(j), _sum(pieces))

    def _weigh(self, count: Any) -> None:
        """Turn logits into weights, and scale what was summed up before."""
        writer, store = self.writer, self.writer.store
        before = writer.bind(self.held[self.top], "before")
        with writer.loop(count, name="t") as i:
            store(self.held, self.top, tvm.maximum(self.held[self.top], self.logits[i]))
        base = writer.bind(self.rows.base(self.held[self.top]), "base")
        scale = writer.bind(f.exp(before - base), "scale")
        with writer.loop(count, name="t") as i:
            store(self.logits, i, f.exp(self.logits[i] - base))
        store(self.held, self.total, self.held[self.total] * scale)
        with writer.loop(count, name="t") as i:
            store(self.held, self.total, self.held[self.total] + self.logits[i])
        with writer.loop(self.rows.V, name="l") as lane:
            store(self.sums, lane, self.sums[lane] * scale)

    def _values(self, t: Any, count: Any, column: int, columns: int) -> None:
        """Add some columns of the values of a block, weighed."""
        rows = self.rows
        read = rows.value_reader(self.b, self.g, t)

        def panel(first: int) -> Any:
            return lambda i, lane: read(i * tvm.integer(rows.V) + tvm.integer(first) + lane)

        whole = columns // PANEL
        starts = [column + q * PANEL for q in range(whole)]
        if whole:
            made = accumulated_tile(
                self.writer, self.dtype, count, [lambda i: self.logits[i]], [*map(panel, starts)]
            )
            with self.writer.loop(whole * PANEL, name="l") as lane:
                spot = tvm.integer(column) + lane
                self.writer.store(self.sums, spot, self.sums[spot] + made[lane])
        first = column + whole * PANEL
        if columns % PANEL == 0:
            return
        with (
            self.writer.loop(count, name="t") as i,
            self.writer.loop(columns % PANEL, name="l") as lane,
        ):
            spot = tvm.integer(first) + lane
            term = self.logits[i] * panel(first)(i, lane)
            self.writer.store(self.sums, spot, self.sums[spot] + term)


def _sum(pieces: list[Any]) -> Any:
    """The sum of numbers as a tree."""
    while len(pieces) > 1:
        half = len(pieces) // 2
        odd = pieces[2 * half :]
        pieces = [a + b for a, b in zip(pieces[:half], pieces[half : 2 * half], strict=True)] + odd
    return pieces[0]
