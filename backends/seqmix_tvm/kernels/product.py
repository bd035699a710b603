"""Products with a weight that was packed for them.

M rows, N columns, K terms. A packed weight ``[N, K]`` lies as ``[ceil(N / 16), K, 16]``: panels of
16 outputs, so that one term's weights for a panel are two vectors side by side.

Many rows are taken in blocks, whose operands stay in the second-level cache while panels of the
weight pass by; few rows stream the weight once, several panels at a time. Operands of 16 bits are
widened once per block of rows, weights of 8 and 16 bits in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.matmul import unpacked_linear
from seqmix_tvm.kernels.reduction import accumulated
from seqmix_tvm.kernels.tile import PANEL, TILE, accumulated_tile, covered, share
from seqmix_tvm.place import COMPUTED, Index, known, present
from seqmix_tvm.quantise import stored_weight

__all__ = ["PANEL", "linear", "packed_index"]

_WIDTHS = (6, 5, 4)
"""Panels that one row is multiplied with at once: as many streams of memory."""

_AHEAD = 512
"""How far ahead a weight of 8 bits is asked for, in elements."""

_PANELS = 8
"""Panels that a task takes a block of rows through, at most."""

_BLOCK_BYTES = 1 << 18
"""Half of a second-level cache: what the operands of a block of rows may take up."""

_BLOCK_TILES = (4, 16)
"""The fewest and the most tiles of a block of rows."""


def packed_index(index: Index) -> Any:
    """Where a packed weight ``[N, K]`` keeps an element."""
    n, k = index.axes
    panel, lane = (
        tvm.call("floordiv", n, tvm.integer(PANEL)),
        tvm.call("floormod", n, tvm.integer(PANEL)),
    )
    return (panel * index.sizes(index.shape[1]) + k) * tvm.integer(PANEL) + lane


def linear(kernel: Kernel, op: Op) -> None:
    """``linear``: tiles of rows and panels where there are many rows, else panel by panel."""
    weight, _ = stored_weight(op.operands[1], kernel.frame.producer)
    if weight is None or kernel.frame.places[weight].where is not packed_index:
        unpacked_linear(kernel, op)
        return
    product = _Product(kernel, op)
    if product.held:
        product.each_row()
        return
    M = product.count
    if isinstance(M, int):
        (product.blocked if M >= TILE else product.streamed)()
        return
    kernel.writer.choose(kernel.sizes(M) >= tvm.integer(TILE), product.blocked, product.streamed)


def _width(panels: int) -> int:
    """How many panels a row is multiplied with at once: all tasks alike, or many of them."""
    even = (w for w in _WIDTHS if panels % w == 0)
    return next(even, _WIDTHS[0] if panels > 96 else _WIDTHS[-1])


class _Product:
    """The loops of one product with a packed weight."""

    def __init__(self, kernel: Kernel, op: Op) -> None:
        x, weight, bias = op.operands
        # Of a weight in int8, the scale of an output channel multiplies the finished sum.
        weight, self.scale = stored_weight(weight, kernel.frame.producer)
        self.kernel, self.x, self.weight, self.bias = kernel, present(x), present(weight), bias
        self.writer = kernel.writer
        self.y = op.results[0]
        self.lead = self.x.type.shape[:-1]
        self.N, self.K = map(known, self.weight.type.shape)
        self.panels = -(-self.N // PANEL)
        self.wide = _width(self.panels)
        self.dtype = accumulated(op, self.x)
        self.held = dict(kernel.held(self.x))
        self.count: Size = 1
        for size in self.lead:
            self.count = self.count * size

    def blocked(self) -> None:
        """Tasks of some tiles of rows by several panels, all of nearly the same size."""
        few, many = _BLOCK_TILES
        most = max(few, min(many, _BLOCK_BYTES // (4 * max(self.K, 1) * TILE)))
        tiles = self._ceildiv(self.kernel.sizes(self.count), TILE)
        blocks, groups = self._ceildiv(tiles, most), tvm.integer(-(-self.panels // _PANELS))

        def task(place: Any) -> None:
            block, group = (tvm.call(n, place, groups) for n in ("floordiv", "floormod"))
            first, end = (
                self.writer.bind(share(tiles, block + tvm.integer(i), blocks), "tile")
                for i in range(2)
            )
            start, stop = (
                self.writer.bind(share(tvm.integer(self.panels), group + tvm.integer(i), groups))
                for i in range(2)
            )
            read = self._widened(first, end, most)
            with (
                self.writer.loop(stop - start, name="p") as p,
                self.writer.loop(end - first, name="t") as t,
            ):
                m = self.writer.bind(covered(first + t, self.kernel.sizes(self.count)), "m")
                rows = [self._row(m + tvm.integer(r)) for r in range(TILE)]
                self._tile(rows, [start + p], [read(row, t, r) for r, row in enumerate(rows)])

        self._tasks(blocks * groups, task)

    def streamed(self) -> None:
        """Few rows: every panel is read once, and all rows take it in."""

        def task(group: Any) -> None:
            with self.writer.loop(self.kernel.sizes(self.count), name="m") as m:
                self._wide(self._row(m), self.writer.bind(group * tvm.integer(self.wide), "panel"))

        self._tasks(tvm.integer(-(-self.panels // self.wide)), task)

    def each_row(self) -> None:
        """Rows one by one, inside of other kernels."""
        free = [a for a in range(len(self.lead)) if a not in self.held]

        def row(counters: tuple[Any, ...]) -> None:
            at = {**self.held, **dict(zip(free, counters, strict=True))}
            lead = self.kernel.frame.index(self.lead, tuple(at[a] for a in range(len(self.lead))))
            with self.writer.loop(-(-self.panels // self.wide), name="group") as group:
                self._wide(lead, self.writer.bind(group * tvm.integer(self.wide), "panel"))

        self.writer.nest([self.kernel.sizes(self.lead[a]) for a in free], row)

    def _wide(self, row: Index, first: Any) -> None:
        """One row and several panels: sums enough to keep the multipliers busy."""
        last = self.panels % self.wide

        def some(count: int) -> Callable[[], None]:
            panels = [first + tvm.integer(i) for i in range(count)]
            return lambda: self._tile([row], panels, [self._read(row)])

        if not last:
            some(self.wide)()
        elif self.panels < self.wide:
            some(last)()
        else:
            whole = first + tvm.integer(self.wide) <= tvm.integer(self.panels)
            self.writer.choose(whole, some(self.wide), some(last))

    def _tasks(self, count: Any, task: Callable[[Any], None]) -> None:
        def run(kind: str) -> Callable[[], None]:
            def loops() -> None:
                with self.writer.loop(count, kind, "task") as place:
                    task(place)

            return loops

        self.kernel.when_large(self.count * self.N * self.K, run("parallel"), run("serial"))

    def _ceildiv(self, number: Any, by: int) -> Any:
        return tvm.call("floordiv", number + tvm.integer(by - 1), tvm.integer(by))

    def _row(self, m: Any) -> Index:
        return self.kernel.frame.index(self.lead, flat=m)

    def _read(self, row: Index) -> Callable[[Any], Any]:
        """The terms of a row as they lie in memory."""
        start = self.writer.bind(row.flat * tvm.integer(self.K), "row")
        frame = self.kernel.frame
        return lambda k: frame.at(self.x, frame.index(self.x.type.shape, flat=start + k))

    def _widened(self, first: Any, end: Any, most: int) -> Callable[[Index, Any, int], Any]:
        """How terms are read of the rows of a block: a block of 16 bits is widened before.

        Then it is ``read(row, tile, place in the tile)`` that gives the terms of a row.
        """
        if self.x.type.dtype not in ("bf16", "f16"):
            return lambda row, t, r: self._read(row)
        K, size = tvm.integer(self.K), tvm.integer(self.K * TILE)
        wide = self.writer.local(self.dtype, most * self.K * TILE)
        with self.writer.loop(end - first, name="t") as t:
            m = self.writer.bind(covered(first + t, self.kernel.sizes(self.count)), "m")
            for r in range(TILE):
                read = self._read(self._row(m + tvm.integer(r)))
                with self.writer.loop(self.K, name="k") as k:
                    spot = t * size + tvm.integer(r) * K + k
                    self.writer.store(wide, spot, tvm.cast(self.dtype, read(k)))
        return lambda row, t, r: lambda k: wide[t * size + tvm.integer(r) * K + k]

    def _tile(
        self, rows: Sequence[Index], panels: Sequence[Any], reads: Sequence[Callable[[Any], Any]]
    ) -> None:
        """Some panels for some rows: accumulate over all terms, then pass the sums on."""
        place = self.kernel.frame.places[self.weight]

        def columns(panel: Any) -> Callable[[Any, Any], Any]:
            base = self.writer.bind(panel * tvm.integer(self.K * PANEL), "base")
            return lambda k, lane: place.read(base + k * tvm.integer(PANEL) + lane)

        made = [columns(panel) for panel in panels]
        ahead = self._ask_ahead(panels) if len(rows) == 1 and place.dtype == "i8" else None
        terms = tvm.integer(self.K)
        sums = accumulated_tile(self.writer, self.dtype, terms, reads, made, ahead=ahead)
        for q, panel in enumerate(panels):
            self._finish(rows, sums, panel, q * PANEL, len(panels) * PANEL)

    def _ask_ahead(self, panels: Sequence[Any]) -> Callable[[Any], None]:
        """Ask for what is read soon: of small elements a panel has too few pages to be foreseen."""
        place, size = self.kernel.frame.places[self.weight], tvm.integer(self.K * PANEL)
        spots = [self.writer.bind(panel * size + tvm.integer(_AHEAD), "spot") for panel in panels]

        def ask(k: Any) -> None:
            for spot in spots:
                here = spot + k * tvm.integer(PANEL)
                self.writer.emit(tvm.prefetch(place.buffer, here))

        return ask

    def _finish(self, rows: Sequence[Index], sums: Any, panel: Any, offset: int, wide: int) -> None:
        """Give the sums of a panel to the epilogue; the last panel may not be full."""
        rest = self.N % PANEL
        if self.kernel.vectors == "serial":
            left = tvm.integer(self.N) - panel * tvm.integer(PANEL)
            lanes = tvm.minimum(tvm.integer(PANEL), left) if rest else PANEL
            self._pass_one_by_one(rows, sums, panel, lanes, offset, wide)
            return
        if not rest:
            self._pass(rows, sums, panel, offset, wide)
            return
        self.writer.choose(
            panel < tvm.integer(self.panels - 1),
            lambda: self._pass(rows, sums, panel, offset, wide),
            lambda: self._pass_one_by_one(rows, sums, panel, rest, offset, wide),
        )

    def _pass(self, rows: Sequence[Index], sums: Any, panel: Any, offset: int, wide: int) -> None:
        for r, row in enumerate(rows):
            with self.writer.loop(PANEL, "vectorized", "l") as lane:
                self._element(row, panel, lane, sums[tvm.integer(r * wide + offset) + lane])

    def _pass_one_by_one(
        self, rows: Sequence[Index], sums: Any, panel: Any, lanes: Any, offset: int, wide: int
    ) -> None:
        """Element by element: the epilogue is written once, since LLVM takes long over many.

        The sums are copied, for what is read at a place that is computed is kept in no register.
        """
        copied = self.writer.local(self.dtype, len(rows) * PANEL)
        for r in range(len(rows)):
            with self.writer.loop(PANEL, "vectorized", "l") as lane:
                found = sums[tvm.integer(r * wide + offset) + lane]
                self.writer.store(copied, tvm.integer(r * PANEL) + lane, found)
        if len(rows) == 1:
            with self.writer.loop(lanes, name="l") as lane:
                self._element(rows[0], panel, lane, copied[lane])
            return
        with self.writer.loop(len(rows), name="r") as r:
            row = self._row(self.writer.bind(rows[0].flat + r, "m"))
            with self.writer.loop(lanes, name="l") as lane:
                self._element(row, panel, lane, copied[r * tvm.integer(PANEL) + lane])

    def _element(self, row: Index, panel: Any, lane: Any, total: Any) -> None:
        """One sum, finished."""
        n = panel * tvm.integer(PANEL) + lane
        flat = row.flat * tvm.integer(self.N) + n
        index = Index(self.kernel.sizes, self.y.type.shape, lambda: (*row.axes, n), flat)
        if self.scale is not None:
            total = total * self._channel(self.scale, n)
        if self.bias is not None:
            total = total + self._channel(self.bias, n)
        self.kernel.sink(index, tvm.cast(COMPUTED[self.y.type.dtype], total))

    def _channel(self, value: Any, n: Any) -> Any:
        """What a value holds for an output."""
        here = self.kernel.frame.index(value.type.shape, (n,))
        return tvm.cast(self.dtype, self.kernel.frame.at(value, here))
