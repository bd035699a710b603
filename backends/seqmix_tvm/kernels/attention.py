"""Softmax attention without the matrix of logits: a few rows at a time over blocks of keys.

Rows are the queries of all heads that share keys: a block of keys is read once for several of
them. The largest logit so far scales what is summed up (Milakov and Gimelshein 2018; Dao et al.
2022). A block that no row of a tile sees costs its masks only.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqmix_ir.graph import Op
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import LANES, Kernel
from seqmix_tvm.place import COMPUTED, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["attention", "missing_attention"]

_ROWS = 4
_KEYS = 64
_WIDTH = 2 * LANES


def missing_attention(op: Op) -> str | None:
    """Why there is no kernel for these operands: their sizes must be known."""
    q, v = op.operands[0], op.operands[2]
    if q is None or v is None or not isinstance(q.type.shape[3], int):
        return "the key size is not known"
    return None if isinstance(v.type.shape[3], int) else "the value size is not known"


def attention(kernel: Kernel, op: Op) -> None:
    """Tiles of rows, spread over batch, key heads and blocks of rows."""
    q, k = present(op.operands[0]), present(op.operands[1])
    B, S = q.type.shape[0], q.type.shape[2]
    H, G = known(q.type.shape[1]), known(k.type.shape[1])
    rows = H // G * S
    sizes, writer = kernel.sizes, kernel.writer
    blocks = tvm.call("floordiv", sizes(rows) + tvm.integer(_ROWS - 1), tvm.integer(_ROWS))

    def task(place: Any) -> None:
        block = tvm.call("floormod", place, blocks)
        rest = tvm.call("floordiv", place, blocks)
        b = writer.bind(tvm.call("floordiv", rest, sizes(G)), "b")
        g = writer.bind(tvm.call("floormod", rest, sizes(G)), "g")
        first = writer.bind(block * tvm.integer(_ROWS), "first")
        left = writer.bind(sizes(rows) - first, "left")

        def whole() -> None:
            _Tile(kernel, op, b, g, [first + tvm.integer(r) for r in range(_ROWS)]).run()

        def single() -> None:
            with writer.loop(left, name="r") as r:
                _Tile(kernel, op, b, g, [first + r]).run()

        writer.choose(left >= tvm.integer(_ROWS), whole, single)

    def loops(kind: str) -> Any:
        def run() -> None:
            with writer.loop(sizes(B) * sizes(G) * blocks, kind, "task") as place:
                task(place)

        return run

    loops("serial" if kernel.serial else "parallel")()


@dataclass
class _Tile:
    """Some rows that share keys."""

    kernel: Kernel
    op: Op
    b: Any
    g: Any
    rows: Sequence[Any]

    def __post_init__(self) -> None:
        self.q, self.k, self.v, self.qp, self.kp = map(present, self.op.operands[:5])
        self.bias, self.sinks = self.op.operands[5:]
        self.dtype = COMPUTED[self.q.type.dtype]
        self.writer, self.frame = self.kernel.writer, self.kernel.frame
        self.K, self.V = known(self.q.type.shape[3]), known(self.v.type.shape[3])
        size = self.kernel.sizes(self.q.type.shape[2])
        share = tvm.integer(known(self.q.type.shape[1]) // known(self.k.type.shape[1]))
        self.heads = [
            self.writer.bind(self.g * share + tvm.call("floordiv", r, size), "h") for r in self.rows
        ]
        self.queries = [self.writer.bind(tvm.call("floormod", r, size), "s") for r in self.rows]
        at = self.kernel.frame.index
        self.positions = [
            self.frame.at(self.qp, at(self.qp.type.shape, (self.b, s))) for s in self.queries
        ]
        scale = self.op.defn.attributes()["scale"]
        self.scale = scale or 1 / math.sqrt(max(self.K, 1))

    def run(self) -> None:
        """All blocks of keys, then the quotients."""
        writer, n = self.writer, len(self.rows)
        T = self.kernel.sizes(self.k.type.shape[2])
        self.logits = writer.local(self.dtype, n * _KEYS)
        self.sums = writer.local(self.dtype, n * self.V)
        self.top, self.total = writer.local(self.dtype, n), writer.local(self.dtype, n)
        with writer.loop(n * self.V, name="l") as lane:
            writer.store(self.sums, lane, number(0, self.dtype))
        for r in range(n):
            writer.store(self.top, tvm.integer(r), self._sink(r) if self.sinks else self._low())
            writer.store(self.total, tvm.integer(r), number(1 if self.sinks else 0, self.dtype))
        blocks = tvm.call("floordiv", T + tvm.integer(_KEYS - 1), tvm.integer(_KEYS))
        with writer.loop(blocks, name="block") as block:
            first = writer.bind(block * tvm.integer(_KEYS), "t0")
            count = writer.bind(tvm.minimum(tvm.integer(_KEYS), T - first), "count")
            seen = self._mask(first, count)
            writer.choose(seen, lambda: self._block(first, count))
        self._finish()

    def _low(self) -> Any:
        return number(-math.inf, self.dtype)

    def _sink(self, r: int) -> Any:
        index = self.frame.index(present(self.sinks).type.shape, (self.heads[r],))
        return tvm.cast(self.dtype, self.frame.at(self.sinks, index))

    def _mask(self, first: Any, count: Any) -> Any:
        """Write 0 where a row sees a key and -inf elsewhere; whether any sees any."""
        writer, has = self.writer, self.op.defn.attributes()
        some = writer.local("int32", 1)
        writer.store(some, tvm.integer(0), tvm.integer(0, "int32"))
        zero = tvm.integer(0)
        with writer.loop(count, name="t") as t:
            index = self.frame.index(self.kp.type.shape, (self.b, first + t))
            key = self.frame.at(self.kp, index)
            for r, query in enumerate(self.positions):
                seen = tvm.both(key >= zero, query >= zero)
                if has["causal"]:
                    seen = tvm.both(seen, key <= query)
                if has["window"]:
                    seen = tvm.both(seen, query - key < tvm.integer(has["window"]))
                seen = writer.bind(seen, "seen")
                value = tvm.select(seen, number(0, self.dtype), self._low())
                writer.store(self.logits, tvm.integer(r * _KEYS) + t, value)
                writer.store(some, zero, some[zero] | tvm.cast("int32", seen))
        return some[zero] > tvm.integer(0, "int32")

    def _block(self, first: Any, count: Any) -> None:
        """Logits of a block of keys, their weights, and what these add."""
        with self.writer.loop(count, name="t") as t:
            self._dots(first + t, t)
        with self.writer.loop(len(self.rows), name="r") as r:
            self._weigh(r, count)
        for start in range(0, self.V, _WIDTH):
            self._add(first, count, start, min(_WIDTH, self.V - start))

    def _dots(self, key: Any, t: Any) -> None:
        """Add the products of all rows with one key to the masks."""
        K, writer, n = self.K, self.writer, len(self.rows)
        kind = "vectorized"
        full = K // LANES
        parts = writer.filled(self.dtype, n * LANES, number(0, self.dtype), LANES)

        def product(r: int, place: Any) -> Any:
            own = self.frame.index(
                self.q.type.shape, (self.b, self.heads[r], self.queries[r], place)
            )
            other = self.frame.index(self.k.type.shape, (self.b, self.g, key, place))
            return self.frame.at(self.q, own) * self.frame.at(self.k, other)

        with writer.loop(full, name="c") as c:
            for r in range(n):
                with writer.loop(LANES, kind, "l") as lane:
                    spot = tvm.integer(r * LANES) + lane
                    term = product(r, c * tvm.integer(LANES) + lane)
                    writer.store(parts, spot, parts[spot] + term)
        for r in range(n):
            pieces = [parts[tvm.integer(r * LANES + i)] for i in range(LANES)]
            pieces += [product(r, tvm.integer(place)) for place in range(full * LANES, K)]
            while len(pieces) > 1:
                half = len(pieces) // 2
                odd = pieces[2 * half :]
                pieces = [
                    a + b for a, b in zip(pieces[:half], pieces[half : 2 * half], strict=True)
                ]
                pieces += odd
            logit = pieces[0] * number(self.scale, self.dtype)
            if self.bias is not None:
                shape = (*self.q.type.shape[:3], self.k.type.shape[2])
                index = self.frame.index(shape, (self.b, self.heads[r], self.queries[r], key))
                logit = logit + tvm.cast(self.dtype, self.frame.broadcast(self.bias, index))
            spot = tvm.integer(r * _KEYS) + t
            writer.store(self.logits, spot, self.logits[spot] + logit)

    def _weigh(self, place: Any, count: Any) -> None:
        """Turn the logits of a row into weights, and scale what was summed up before."""
        writer = self.writer
        offset = writer.bind(place * tvm.integer(_KEYS), "offset")
        top = writer.local(self.dtype, 1)
        writer.store(top, tvm.integer(0), self.top[place])
        with writer.loop(count, name="t") as t:
            found = self.logits[offset + t]
            writer.store(top, tvm.integer(0), f.larger(top[tvm.integer(0)], found))
        new = writer.bind(top[tvm.integer(0)], "top")
        # Nothing is subtracted from a row that has seen nothing yet: -inf - -inf is NaN.
        base = writer.bind(tvm.select(new < number(-3e38, self.dtype), number(0, self.dtype), new))
        scale = writer.bind(f.exp(self.top[place] - base), "scale")
        writer.store(self.top, place, new)
        part = writer.local(self.dtype, 1)
        writer.store(part, tvm.integer(0), number(0, self.dtype))
        with writer.loop(count, name="t") as t:
            writer.store(self.logits, offset + t, f.exp(self.logits[offset + t] - base))
        with writer.loop(count, name="t") as t:
            total = part[tvm.integer(0)] + self.logits[offset + t]
            writer.store(part, tvm.integer(0), total)
        writer.store(self.total, place, self.total[place] * scale + part[tvm.integer(0)])
        with writer.loop(self.V, name="l") as lane:
            spot = place * tvm.integer(self.V) + lane
            writer.store(self.sums, spot, self.sums[spot] * scale)

    def _add(self, first: Any, count: Any, start: int, lanes: int) -> None:
        """Add the values of a block, weighed, to some columns of the sums."""
        writer, n = self.writer, len(self.rows)
        kind = "vectorized" if lanes in (LANES, _WIDTH) else "serial"
        vector = lanes if kind == "vectorized" else 1
        parts = writer.filled(self.dtype, n * lanes, number(0, self.dtype), vector)
        with writer.loop(count, name="t") as t:
            for r in range(n):
                weight = writer.bind(self.logits[tvm.integer(r * _KEYS) + t], "p")
                with writer.loop(lanes, kind, "l") as lane:
                    at = (self.b, self.g, first + t, tvm.integer(start) + lane)
                    value = self.frame.at(self.v, self.frame.index(self.v.type.shape, at))
                    spot = tvm.integer(r * lanes) + lane
                    writer.store(parts, spot, parts[spot] + weight * value)
        for r in range(n):
            with writer.loop(lanes, kind, "l") as lane:
                spot = tvm.integer(r * self.V + start) + lane
                writer.store(
                    self.sums, spot, self.sums[spot] + parts[tvm.integer(r * lanes) + lane]
                )

    def _finish(self) -> None:
        (y,) = self.op.results
        for r in range(len(self.rows)):
            total = self.writer.bind(self.total[tvm.integer(r)], "total")
            none = tvm.both(total <= number(0, self.dtype), total >= number(0, self.dtype))
            one = number(1, self.dtype)
            scale = self.writer.bind(one / tvm.select(none, one, total), "scale")
            with self.writer.loop(self.V, name="l") as lane:
                at = (self.b, self.heads[r], self.queries[r], lane)
                index = self.frame.index(y.type.shape, at)
                self.kernel.sink(index, self.sums[tvm.integer(r * self.V) + lane] * scale)
