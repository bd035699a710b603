"""Linear attention on a GPU: 32 columns of the state per block, in registers.

A lane is a column, and each warp has some rows of the state. Tokens are taken in one after the
other, as the recurrence says, so that nothing is divided by a decay; those of a chunk lie in shared
memory, and what the warps find for their rows is summed up once per chunk.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from typing import Any, cast

from seqmix_ir.graph import Op, Value
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import CudaKernel, ceildiv_expr
from seqmix_tvm.cuda.writer import LANES
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, known, present

__all__ = ["linear_attention"]

_WARPS = 8
_ROOM = 44 << 10
"""Bytes of shared memory that a chunk may take up."""

_CHUNKS = (16, 8, 4, 2, 1)
"""Tokens of a chunk: as many as there is room for."""


def linear_attention(kernel: Kernel, op: Op) -> None:
    """A block for 32 columns of the state of one head."""
    made = cast("CudaKernel", kernel)
    q, v = present(op.operands[0]), present(op.operands[2])
    B, H, _, _ = q.type.shape
    lead = (B, H, -(-known(v.type.shape[3]) // LANES))

    def task(place: Any) -> None:
        b, h, group = kernel.frame.index(lead, flat=place).axes
        _Columns(made, op, b, h, kernel.writer.bind(group * tvm.integer(LANES), "first")).run()

    made.blocks_over(kernel.sizes.product(lead), _WARPS, task)


class _Columns:
    """All tokens for some columns of the state."""

    def __init__(self, kernel: CudaKernel, op: Op, b: Any, h: Any, first: Any) -> None:
        self.kernel, self.b, self.h = kernel, b, h
        self.writer, self.frame = kernel.threads, kernel.frame
        self.q, self.k, self.v = map(present, op.operands[:3])
        self.decay, self.state = op.operands[3], present(op.operands[4])
        self.y, self.last = op.results
        self.dtype = COMPUTED[self.q.type.dtype]
        self.K, self.V = known(self.q.type.shape[3]), known(self.v.type.shape[3])
        self.per_key = self.decay is not None and self.decay.type.rank == 4
        self.threads = self.writer.threads
        self.each = -(-self.K // self.threads.warps)
        self.column = self.writer.bind(first + self.threads.lane, "column")
        self.inside = self.writer.bind(self.column < tvm.integer(self.V), "inside")
        # Lanes past the last column repeat it.
        last = tvm.integer(self.V - 1)
        self.read = self.writer.bind(tvm.minimum(self.column, last), "read")
        self._allocate()

    def _allocate(self) -> None:
        width = (3 if self.per_key else 2) * self.K + 1 + LANES * self.threads.warps
        room = _ROOM // tvm.bytes_of(self.dtype)
        self.chunk = next((c for c in _CHUNKS if c * width <= room), 1)
        shared, dtype = self.writer.shared, self.dtype
        self.queries, self.keys = (shared(dtype, self.chunk * self.K) for _ in range(2))
        self.decays = shared(dtype, self.chunk * (self.K if self.per_key else 1))
        self.parts = shared(dtype, self.chunk * self.threads.count)
        self.held = self.writer.local(dtype, self.each)

    def run(self) -> None:
        """Chunk after chunk; the state stays in registers until the end."""
        writer, S = self.writer, self.kernel.sizes(self.q.type.shape[2])
        for i in range(self.each):
            writer.store(self.held, tvm.integer(i), self._start(i))
        with writer.loop(ceildiv_expr(S, self.chunk), name="chunk") as chunk:
            self.first = writer.bind(chunk * tvm.integer(self.chunk), "t0")
            count = tvm.minimum(tvm.integer(self.chunk), S - self.first)
            self.count = writer.bind(count, "count")
            self._stage()
            writer.sync()
            with writer.loop(self.count, name="t") as t:
                self._token(t)
            writer.sync()
            self._sum_up()
            writer.sync()
        for i in range(self.each):
            self._end(i)

    def _row(self, i: int) -> Any:
        """The row of the state that is the thread's ``i``-th."""
        return self.threads.warp + tvm.integer(i * self.threads.warps)

    def _full(self, i: int) -> bool:
        """Whether every warp has a row of this number."""
        return (i + 1) * self.threads.warps <= self.K

    def _start(self, i: int) -> Any:
        row = self._row(i)
        row = row if self._full(i) else tvm.minimum(row, tvm.integer(self.K - 1))
        index = self.frame.index(self.state.type.shape, (self.b, self.h, row, self.read))
        return tvm.cast(self.dtype, self.frame.at(self.state, index))

    def _end(self, i: int) -> None:
        def store() -> None:
            at = (self.b, self.h, self._row(i), self.column)
            index = self.frame.index(self.last.type.shape, at)
            self.frame.save(self.last, index, self.held[tvm.integer(i)])

        here = self.inside
        if not self._full(i):
            here = tvm.both(here, self._row(i) < tvm.integer(self.K))
        self.writer.choose(here, store)

    def _stage(self) -> None:
        """Queries, keys and decays of the chunk."""
        self._copy(self.queries, self.q, self.K)
        self._copy(self.keys, self.k, self.K)
        if self.decay is not None:
            self._copy(self.decays, self.decay, self.K if self.per_key else 1, decay=True)

    def _copy(self, target: Any, source: Value, width: int, decay: bool = False) -> None:
        writer = self.writer

        def element(e: Any) -> None:
            t, i = (tvm.call(n, e, tvm.integer(width)) for n in ("floordiv", "floormod"))
            t = writer.bind(tvm.minimum(t, self.count - tvm.integer(1)), "t")
            at = (self.b, self.h, self.first + t, i)[: source.type.rank]
            found = self.frame.at(source, self.frame.index(source.type.shape, at))
            found = tvm.cast(self.dtype, found)
            writer.store(target, e, f.exp(found) if decay else found)

        self.kernel.turns(self.chunk * width, element)

    def _token(self, t: Any) -> None:
        """Decay, what key and value add, what the query reads: for the rows of the thread."""
        writer, K = self.writer, tvm.integer(self.K)
        at = (self.b, self.h, self.first + t, self.read)
        found = self.frame.at(self.v, self.frame.index(self.v.type.shape, at))
        value = writer.bind(tvm.cast(self.dtype, found), "value")
        total, zero = writer.local(self.dtype, 1), tvm.integer(0)
        writer.store(total, zero, tvm.floating(0.0, self.dtype))
        start = writer.bind(t * K, "start")
        for i in range(self.each):
            if self._full(i):
                self._take(i, t, start, value, total)
            else:
                here = self._row(i) < K
                writer.choose(here, lambda i=i: self._take(i, t, start, value, total))  # type: ignore[misc]
        spot = t * tvm.integer(self.threads.count) + self.threads.place
        writer.store(self.parts, spot, total[zero])

    def _take(self, i: int, t: Any, start: Any, value: Any, total: Any) -> None:
        writer, spot, zero = self.writer, tvm.integer(i), tvm.integer(0)
        place = writer.bind(start + self._row(i), "place")
        kept = self.held[spot]
        if self.decay is not None:
            kept = kept * self.decays[place if self.per_key else t]
        writer.store(self.held, spot, kept + self.keys[place] * value)
        writer.store(total, zero, total[zero] + self.queries[place] * self.held[spot])

    def _sum_up(self) -> None:
        """What all warps found for a token and a column: a warp takes a token."""
        writer, warps = self.writer, self.threads.warps
        with writer.loop(-(-self.chunk // warps), name="turn") as turn:
            t = writer.bind(turn * tvm.integer(warps) + self.threads.warp, "t")

            def store() -> None:
                first = t * tvm.integer(self.threads.count) + self.threads.lane
                total = self.parts[first]
                for warp in range(1, warps):
                    total = total + self.parts[first + tvm.integer(warp * LANES)]
                at = (self.b, self.h, self.first + t, self.column)
                element = writer.bind(total, "y")
                self.frame.save(self.y, self.frame.index(self.y.type.shape, at), element)

            writer.choose(tvm.both(t < self.count, self.inside), store)
