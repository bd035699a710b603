"""Attention of many rows: blocks of rows against blocks of keys, through the tile of products.

The logits of a block lie key by key, ``[keys, rows]``: keys are the rows of the first product and
queries its columns, so that keys are read where they lie, and maxima and sums over keys are
elementwise on vectors of rows. Weights times values is the second product; its rows are queries. A
block of keys that no row of a block sees is skipped, one that all rows see has no masks.

G key heads, K key size, V value size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernels.attention_rows import Rows
from seqmix_tvm.kernels.tile import PANEL, TILE, accumulated_tile

__all__ = ["flash_attention"]

_ROWS = 3 * PANEL
"""Rows of a block."""

_KEYS = 8 * TILE
"""Keys of a block."""


def flash_attention(rows: Rows) -> None:
    """Tasks of a block of rows, spread over batch and key heads too."""
    sizes, writer = rows.kernel.sizes, rows.writer
    count = sizes(rows.count)
    blocks = _ceildiv(count, _ROWS)
    two = tvm.integer(2)

    def task(place: Any) -> None:
        rest = tvm.call("floordiv", place, blocks)
        turn = writer.bind(tvm.call("floormod", place, blocks), "turn")
        # Later rows see more keys: every other task starts from the end.
        half = tvm.call("floordiv", turn, two)
        late = tvm.equal(tvm.call("floormod", turn, two), tvm.integer(1))
        block = tvm.select(late, blocks - tvm.integer(1) - half, half)
        b = writer.bind(tvm.call("floordiv", rest, tvm.integer(rows.G)), "b")
        g = writer.bind(tvm.call("floormod", rest, tvm.integer(rows.G)), "g")
        first = writer.bind(block * tvm.integer(_ROWS), "first")
        left = writer.bind(tvm.minimum(tvm.integer(_ROWS), count - first), "left")
        _Block(rows, b, g, first, left).run()

    rows.tasks(sizes(rows.B) * tvm.integer(rows.G) * blocks, task)


class _Block:
    """A block of rows that share keys; those past its end repeat the last one, and go nowhere."""

    def __init__(self, rows: Rows, b: Any, g: Any, first: Any, left: Any) -> None:
        self.rows, self.writer, self.dtype = rows, rows.writer, rows.dtype
        self.b, self.g, self.first, self.left = b, g, first, left
        self.wide = -(-rows.V // PANEL) * PANEL
        local = self.writer.local
        self.queries = local(self.dtype, _ROWS * rows.K)
        self.logits = local(self.dtype, _ROWS * _KEYS)
        self.sums = local(self.dtype, _ROWS * self.wide)
        self.top, self.total = local(self.dtype, _ROWS), local(self.dtype, _ROWS)
        self.base, self.factor = local(self.dtype, _ROWS), local(self.dtype, _ROWS)
        self.positions = local("int64", _ROWS)
        self.ends = local("int64", 2)

    def run(self) -> None:
        """All blocks of keys, then the quotients."""
        self._begin()
        zero = tvm.integer(0)
        nearest = self.writer.bind(self.ends[zero], "nearest")
        farthest = self.writer.bind(self.ends[tvm.integer(1)], "farthest")
        T = self.rows.T
        with self.writer.loop(_ceildiv(T, _KEYS), name="block") as block:
            t = self.writer.bind(block * tvm.integer(_KEYS), "t0")
            count = self.writer.bind(tvm.minimum(tvm.integer(_KEYS), T - t), "count")
            some, every = self._seen(t, count, nearest, farthest)
            self.writer.choose(some, partial(self._keys, t, count, every))
        self._finish()

    def _row(self, r: Any) -> tuple[Any, Any]:
        """Head and query of a row of the block."""
        last = self.rows.kernel.sizes(self.rows.count) - tvm.integer(1)
        row = self.writer.bind(tvm.minimum(self.first + r, last), "row")
        return (
            self.writer.bind(self.rows.head(self.g, row), "h"),
            self.writer.bind(self.rows.query(row), "s"),
        )

    def _begin(self) -> None:
        """Copy the queries, scaled, in panels of 16; nothing is summed up yet."""
        rows, store = self.rows, self.writer.store
        store(self.ends, tvm.integer(0), tvm.integer((1 << 62) - 1))
        store(self.ends, tvm.integer(1), tvm.integer(-1))
        with self.writer.loop(_ROWS, name="r") as r:
            h, s = self._row(r)
            position = self.writer.bind(rows.position(self.b, s), "position")
            store(self.positions, r, position)
            for end, pick in enumerate((tvm.minimum, tvm.maximum)):
                place = tvm.integer(end)
                store(self.ends, place, pick(self.ends[place], position))
            store(self.top, r, rows.first_top(h))
            store(self.total, r, rows.first_total)
            size = tvm.integer(rows.K * PANEL)
            panel = tvm.call("floordiv", r, tvm.integer(PANEL)) * size
            lane = tvm.call("floormod", r, tvm.integer(PANEL))
            with self.writer.loop(rows.K, name="k") as k:
                element = rows.query_element(self.b, h, s, k)
                store(self.queries, panel + k * tvm.integer(PANEL) + lane, element)
        with self.writer.loop(_ROWS * self.wide, name="l") as lane:
            store(self.sums, lane, rows.number(0))

    def _seen(self, t: Any, count: Any, nearest: Any, farthest: Any) -> tuple[Any, Any]:
        """Whether some row may see some key of a block, and whether every row sees every key.

        ``nearest`` and ``farthest`` are the smallest and the largest position of the rows.
        """
        flags = self.writer.local("int32", 2)
        some, every = tvm.integer(0), tvm.integer(1)
        self.writer.store(flags, some, tvm.integer(0, "int32"))
        self.writer.store(flags, every, tvm.integer(1, "int32"))
        with self.writer.loop(count, name="t") as i:
            key = self.writer.bind(self.rows.key_position(self.b, t + i), "key")
            maybe = self._maybe(key, nearest, farthest)
            sure = tvm.both(self.rows.sees(nearest, key), self.rows.sees(farthest, key))
            self.writer.store(flags, some, flags[some] | tvm.cast("int32", maybe))
            self.writer.store(flags, every, flags[every] & tvm.cast("int32", sure))
        none = tvm.integer(0, "int32")
        return flags[some] > none, self.writer.bind(flags[every] > none, "every")

    def _maybe(self, key: Any, nearest: Any, farthest: Any) -> Any:
        """Whether a query between two positions may see a key."""
        seen = key >= tvm.integer(0)
        if self.rows.causal:
            seen = tvm.both(seen, key <= farthest)
        if self.rows.window:
            # A query that is padding has position -1, and sees nothing.
            low = tvm.maximum(nearest, tvm.integer(0))
            seen = tvm.both(seen, low - key < tvm.integer(self.rows.window))
        return seen

    def _keys(self, t: Any, count: Any, every: Any) -> None:
        """What a block of keys adds."""
        panels = _ceildiv(self.left, PANEL)
        tiles = self.writer.bind(_ceildiv(count, TILE), "tiles")
        with (
            self.writer.loop(panels, name="p") as p,
            self.writer.loop(tiles, name="tile") as tile,
        ):
            self._logits(p, t, self.writer.bind(tile * tvm.integer(TILE), "i"))
        if self.rows.bias is not None:
            self._add_bias(t, count)
        self.writer.choose(every, lambda: None, lambda: self._mask(t, count))
        with self.writer.loop(panels, name="p") as p:
            self._weigh(self.writer.bind(p * tvm.integer(PANEL), "r"), count)
        with (
            self.writer.loop(_ceildiv(self.left, TILE), name="tile") as tile,
            self.writer.loop(self.wide // PANEL, name="p") as p,
        ):
            column = self.writer.bind(p * tvm.integer(PANEL), "column")
            self._values(t, count, self.writer.bind(tile * tvm.integer(TILE), "r"), column)

    def _logits(self, p: Any, t: Any, i: Any) -> None:
        """Six keys by sixteen rows."""
        rows, last = self.rows, self.rows.T - tvm.integer(1)
        keys = [
            rows.key_reader(self.b, self.g, tvm.minimum(t + i + tvm.integer(j), last))
            for j in range(TILE)
        ]
        base = self.writer.bind(p * tvm.integer(rows.K * PANEL), "base")

        def panel(k: Any, lane: Any) -> Any:
            return self.queries[base + k * tvm.integer(PANEL) + lane]

        sums = accumulated_tile(self.writer, self.dtype, tvm.integer(rows.K), keys, [panel])
        for j in range(TILE):
            with self._lanes() as lane:
                spot = (i + tvm.integer(j)) * tvm.integer(_ROWS) + p * tvm.integer(PANEL) + lane
                self.writer.store(self.logits, spot, sums[tvm.integer(j * PANEL) + lane])

    def _add_bias(self, t: Any, count: Any) -> None:
        with self.writer.loop(self.left, name="r") as r:
            h, s = self._row(r)
            with self.writer.loop(count, name="t") as i:
                spot = i * tvm.integer(_ROWS) + r
                found = self.rows.biased(self.logits[spot], self.b, h, s, t + i)
                self.writer.store(self.logits, spot, found)

    def _mask(self, t: Any, count: Any) -> None:
        """Take away what is not seen."""
        with self.writer.loop(count, name="t") as i:
            key = self.writer.bind(self.rows.key_position(self.b, t + i), "key")
            with self.writer.loop(_ROWS, name="r") as r:
                spot = i * tvm.integer(_ROWS) + r
                seen = self.rows.sees(self.positions[r], key)
                self.writer.store(
                    self.logits, spot, tvm.select(seen, self.logits[spot], self.rows.low)
                )

    def _weigh(self, r: Any, count: Any) -> None:
        """Turn the logits of sixteen rows into weights."""
        top = self.writer.local(self.dtype, PANEL)
        part = self.writer.local(self.dtype, PANEL)
        store = self.writer.store
        with self._lanes() as lane:
            store(top, lane, self.top[r + lane])
        with self.writer.loop(count, name="t") as i, self._lanes() as lane:
            logit = self.logits[i * tvm.integer(_ROWS) + r + lane]
            store(top, lane, tvm.maximum(top[lane], logit))
        with self._lanes() as lane:
            base = self.writer.bind(self.rows.base(top[lane]), "base")
            store(self.base, r + lane, base)
            store(self.factor, r + lane, f.exp(self.top[r + lane] - base))
            store(self.top, r + lane, top[lane])
            store(part, lane, self.rows.number(0))
        with self.writer.loop(count, name="t") as i, self._lanes() as lane:
            spot = i * tvm.integer(_ROWS) + r + lane
            weight = self.writer.bind(f.exp(self.logits[spot] - self.base[r + lane]), "p")
            store(self.logits, spot, weight)
            store(part, lane, part[lane] + weight)
        with self._lanes() as lane:
            total = self.total[r + lane] * self.factor[r + lane] + part[lane]
            store(self.total, r + lane, total)

    def _lanes(self) -> Any:
        return self.writer.loop(PANEL, "vectorized", "l")

    def _values(self, t: Any, count: Any, r: Any, column: Any) -> None:
        """Six rows by sixteen columns: add the values of a block of keys, weighed."""
        spots = [
            self.writer.bind((r + tvm.integer(j)) * tvm.integer(self.wide) + column, "spot")
            for j in range(TILE)
        ]
        factors = [self.writer.bind(self.factor[r + tvm.integer(j)], "f") for j in range(TILE)]
        weights = [
            lambda i, j=j: self.logits[i * tvm.integer(_ROWS) + r + tvm.integer(j)]
            for j in range(TILE)
        ]

        def start(j: int, _: int, lane: Any) -> Any:
            return self.sums[spots[j] + lane] * factors[j]

        panel = self._value_panel(t, column)
        made = accumulated_tile(self.writer, self.dtype, count, weights, [panel], start)
        for j in range(TILE):
            with self._lanes() as lane:
                self.writer.store(self.sums, spots[j] + lane, made[tvm.integer(j * PANEL) + lane])

    def _value_panel(self, t: Any, column: Any) -> Callable[[Any, Any], Any]:
        """Sixteen columns of the values; columns past the last one repeat it."""
        rows = self.rows
        read = rows.value_reader(self.b, self.g, t)
        if self.wide == rows.V:
            return lambda i, lane: read(i * tvm.integer(rows.V) + column + lane)
        last = tvm.integer(rows.V - 1)
        return lambda i, lane: read(i * tvm.integer(rows.V) + tvm.minimum(column + lane, last))

    def _finish(self) -> None:
        with self.writer.loop(self.left, name="r") as r:
            h, s = self._row(r)
            scale = self.writer.bind(self.rows.quotient(self.total[r]), "scale")
            start = self.writer.bind(r * tvm.integer(self.wide), "start")
            self.rows.give(self.b, h, s, lambda lane: self.sums[start + lane] * scale)


def _ceildiv(number: Any, by: int) -> Any:
    return tvm.call("floordiv", number + tvm.integer(by - 1), tvm.integer(by))
