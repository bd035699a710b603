"""Linear attention token by token, with the part of the state that is worked on in registers.

Four rows of the state by sixteen columns take in the tokens of a chunk one after the other, as the
recurrence says: nothing is ever divided by a decay, and one token alone costs one pass over the
state. Keys, queries, values and outputs of a chunk stay in the first-level cache.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from typing import Any

from seqmix_ir.graph import Op, Value
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["linear_attention", "missing_linear_attention"]

_CHUNK = 64
_ROWS = 4
_PANEL = 16
_PANELS = 4
"""Panels of columns of a task: so often are decays per key channel read once."""


def missing_linear_attention(op: Op) -> str | None:
    """Why there is no kernel for these operands: sizes that are not known, a narrow state."""
    q, v, state = op.operands[0], op.operands[2], op.operands[4]
    if q is None or v is None or state is None:
        return "an operand is absent"
    if not (isinstance(q.type.shape[3], int) and isinstance(v.type.shape[3], int)):
        return "the key or the value size is not known"
    if 0 in (q.type.shape[3], v.type.shape[3]):
        return "the state is empty"
    if state.type.dtype not in ("f32", "f64"):
        return f"a state in {state.type.dtype} would be rounded between chunks"
    return None


def linear_attention(kernel: Kernel, op: Op) -> None:
    """Tasks of some columns of the state of one head."""
    q, v = present(op.operands[0]), present(op.operands[2])
    B, H, S, K = q.type.shape
    V = known(v.type.shape[3])
    groups = -(-V // (_PANEL * _PANELS))
    kernel.rows(
        (B, H, groups),
        lambda at: _Task(kernel, op, *at).run(),
        3 * known(K),
        S * min(V, _PANEL * _PANELS),
    )


class _Task:
    """All tokens for the columns of a group of panels."""

    def __init__(self, kernel: Kernel, op: Op, b: Any, h: Any, group: Any) -> None:
        self.kernel, self.b, self.h, self.group = kernel, b, h, group
        self.writer, self.frame = kernel.writer, kernel.frame
        self.q, self.k, self.v = map(present, op.operands[:3])
        self.decay, self.state = op.operands[3], present(op.operands[4])
        self.y, self.last = op.results
        self.dtype = COMPUTED[self.q.type.dtype]
        self.K, self.V = known(self.q.type.shape[3]), known(self.v.type.shape[3])
        self.per_key = self.decay is not None and self.decay.type.rank == 4

    def run(self) -> None:
        """Chunk after chunk; the state between two lies in the memory of the result."""
        writer, S = self.writer, self.kernel.sizes(self.q.type.shape[2])
        self.values = writer.local(self.dtype, _CHUNK * _PANEL)
        self.sums = writer.local(self.dtype, _CHUNK * _PANEL)
        self.decays = writer.local(self.dtype, _CHUNK * (self.K if self.per_key else 1))
        chunks = tvm.call("floordiv", S + tvm.integer(_CHUNK - 1), tvm.integer(_CHUNK))
        with writer.loop(chunks, name="chunk") as chunk:
            self.first = writer.bind(chunk * tvm.integer(_CHUNK), "first")
            self.count = writer.bind(tvm.minimum(tvm.integer(_CHUNK), S - self.first), "count")
            if self.decay is not None:
                self._read_decays(self.decay)
            self._columns()

    def _read_decays(self, decay: Value) -> None:
        """What the tokens of the chunk multiply the state with."""
        writer, width = self.writer, self.K if self.per_key else 1
        before, writer.apart = writer.apart, True
        with writer.loop(self.count, name="t") as t, writer.loop(width, name="i") as i:
            at = (self.b, self.h, self.first + t, *((i,) if self.per_key else ()))
            found = self.frame.at(decay, self.frame.index(decay.type.shape, at))
            element = f.exp(tvm.cast(self.dtype, found))
            writer.store(self.decays, t * tvm.integer(width) + i, element)
        writer.apart = before

    def _columns(self) -> None:
        """Full panels of the group, then the columns that are left, filled up with zeros."""
        writer, full = self.writer, self.V // _PANEL
        start = writer.bind(self.group * tvm.integer(_PANELS), "start")
        left = tvm.maximum(tvm.integer(full) - start, tvm.integer(0))
        if full:
            with writer.loop(tvm.minimum(left, tvm.integer(_PANELS)), name="p") as p:
                self._panel((start + p) * tvm.integer(_PANEL), _PANEL)
        if self.V % _PANEL:
            here = tvm.equal(self.group, tvm.integer(full // _PANELS))
            rest = lambda: self._panel(tvm.integer(full * _PANEL), self.V % _PANEL)  # noqa: E731
            writer.choose(here, rest)

    def _panel(self, column: Any, lanes: int) -> None:
        writer = self.writer
        self._read_values(column, lanes)
        full = self.K // _ROWS
        if full:
            with writer.loop(full, name="block") as block:
                self._rows(block * tvm.integer(_ROWS), _ROWS, column, lanes)
        if self.K % _ROWS:
            self._rows(tvm.integer(full * _ROWS), self.K % _ROWS, column, lanes)
        with writer.loop(self.count, name="t") as t, writer.loop(lanes, name="l") as lane:
            at = (self.b, self.h, self.first + t, column + lane)
            element = writer.bind(self.sums[t * tvm.integer(_PANEL) + lane], "y")
            self.frame.save(self.y, self.frame.index(self.y.type.shape, at), element)

    def _read_values(self, column: Any, lanes: int) -> None:
        """The values of a panel, and sums of nothing."""
        writer = self.writer
        zero = number(0, self.dtype)
        with writer.loop(self.count, name="t") as t:
            row = t * tvm.integer(_PANEL)
            with writer.loop(_PANEL, "vectorized", "l") as lane:
                writer.store(self.sums, row + lane, zero)
                if lanes < _PANEL:
                    writer.store(self.values, row + lane, zero)
            before, writer.apart = writer.apart, True
            with writer.loop(lanes, name="l") as lane:
                at = (self.b, self.h, self.first + t, column + lane)
                found = self.frame.at(self.v, self.frame.index(self.v.type.shape, at))
                writer.store(self.values, row + lane, tvm.cast(self.dtype, found))
            writer.apart = before

    def _rows(self, row: Any, rows: int, column: Any, lanes: int) -> None:
        """Some rows of the state take in the tokens of the chunk."""
        writer = self.writer
        row = writer.bind(row, "row")
        block = writer.filled(self.dtype, rows * _PANEL, number(0, self.dtype), _PANEL)
        self._load(block, row, rows, column, lanes)
        with writer.loop(self.count, name="t") as t:
            part = writer.local(self.dtype, _PANEL)
            here = writer.bind(t * tvm.integer(_PANEL), "here")
            with writer.loop(_PANEL, "vectorized", "l") as lane:
                writer.store(part, lane, self.sums[here + lane])
            for r in range(rows):
                self._token(block, part, t, row, r)
            with writer.loop(_PANEL, "vectorized", "l") as lane:
                writer.store(self.sums, here + lane, part[lane])
        self._store(block, row, rows, column, lanes)

    def _token(self, block: Any, part: Any, t: Any, row: Any, r: int) -> None:
        """One token for one row: decay, what key and value add, what the query reads."""
        writer, channel = self.writer, row + tvm.integer(r)
        k, q = (self._scalar(x, t, channel) for x in (self.k, self.q))
        decay = None
        if self.decay is not None:
            place = t * tvm.integer(self.K) + channel if self.per_key else t
            decay = writer.bind(self.decays[place], "decay")
        here = t * tvm.integer(_PANEL)
        with writer.loop(_PANEL, "vectorized", "l") as lane:
            spot = tvm.integer(r * _PANEL) + lane
            kept = block[spot] if decay is None else block[spot] * decay
            writer.store(block, spot, kept + k * self.values[here + lane])
        with writer.loop(_PANEL, "vectorized", "l") as lane:
            spot = tvm.integer(r * _PANEL) + lane
            writer.store(part, lane, part[lane] + q * block[spot])

    def _scalar(self, x: Value, t: Any, channel: Any) -> Any:
        at = (self.b, self.h, self.first + t, channel)
        found = self.frame.at(x, self.frame.index(x.type.shape, at))
        return self.writer.bind(tvm.cast(self.dtype, found), "x")

    def _load(self, block: Any, row: Any, rows: int, column: Any, lanes: int) -> None:
        """The rows of the given state before the first token, of the last one afterwards."""

        def load(source: Value) -> None:
            kind = "vectorized" if lanes == _PANEL else "serial"
            for r in range(rows):
                with self.writer.loop(lanes, kind, "l") as lane:
                    at = (self.b, self.h, row + tvm.integer(r), column + lane)
                    index = self.frame.index(source.type.shape, at)
                    element = tvm.cast(self.dtype, self.frame.at(source, index))
                    self.writer.store(block, tvm.integer(r * _PANEL) + lane, element)

        start = tvm.equal(self.first, tvm.integer(0))
        self.writer.choose(start, lambda: load(self.state), lambda: load(self.last))

    def _store(self, block: Any, row: Any, rows: int, column: Any, lanes: int) -> None:
        kind = "vectorized" if lanes == _PANEL else "serial"
        for r in range(rows):
            with self.writer.loop(lanes, kind, "l") as lane:
                at = (self.b, self.h, row + tvm.integer(r), column + lane)
                index = self.frame.index(self.last.type.shape, at)
                self.frame.save(self.last, index, block[tvm.integer(r * _PANEL) + lane])
