"""Matrix products: with weights that were packed for it, and of any two tensors.

M rows, N columns, K terms. A packed weight ``[N, K]`` lies as ``[ceil(N / 16), K, 16]``: panels of
16 outputs, so that one term's weights for a panel are two vectors side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.reduction import accumulated, fold_row
from seqmix_tvm.place import COMPUTED, Index, known, present
from seqmix_tvm.rules.layout import number

__all__ = ["PANEL", "linear", "matmul", "packed_index"]

PANEL = 16
_TILE = 6
"""Rows of a tile: with two vectors of a panel, 12 accumulators of the 16 registers of AVX2."""

_WIDE = 4
"""Panels that one row is multiplied with at once."""

_ROWS = 96
_PANELS = 8
"""A task: so many rows by so many panels; the rows' operands stay in the second-level cache."""

_BLOCK = 4
"""Rows of a tile of a product whose operands are not packed."""


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
    weight = op.operands[1]
    if weight is None or kernel.frame.places[weight].where is not packed_index:
        _unpacked(kernel, op)
        return
    tiles = _Tiles(kernel, op)
    if tiles.held:
        tiles.each_row()
        return
    M = tiles.count
    if isinstance(M, int):
        (tiles.blocked if M >= _TILE else tiles.streamed)()
        return
    kernel.writer.choose(kernel.sizes(M) >= tvm.integer(_TILE), tiles.blocked, tiles.streamed)


class _Tiles:
    """The loops of one product with a packed weight."""

    def __init__(self, kernel: Kernel, op: Op) -> None:
        x, weight, bias = op.operands
        self.kernel, self.x, self.weight, self.bias = kernel, present(x), present(weight), bias
        self.y = op.results[0]
        self.lead = self.x.type.shape[:-1]
        self.N, self.K = map(known, self.weight.type.shape)
        self.panels = -(-self.N // PANEL)
        self.dtype = accumulated(op, self.x)
        self.held = dict(kernel.held(self.x))
        self.count: Size = 1
        for size in self.lead:
            self.count = self.count * size

    def blocked(self) -> None:
        """Tasks of many rows by several panels."""
        sizes, writer = self.kernel.sizes, self.kernel.writer
        M = sizes(self.count)
        blocks = tvm.call("floordiv", M + tvm.integer(_ROWS - 1), tvm.integer(_ROWS))
        groups = -(-self.panels // _PANELS)

        def task(place: Any) -> None:
            block = tvm.call("floordiv", place, tvm.integer(groups))
            group = tvm.call("floormod", place, tvm.integer(groups))
            first = writer.bind(block * tvm.integer(_ROWS), "first")
            rows = writer.bind(tvm.minimum(tvm.integer(_ROWS), M - first), "rows")
            start = group * tvm.integer(_PANELS)
            panels = tvm.minimum(tvm.integer(_PANELS), tvm.integer(self.panels) - start)
            with writer.loop(panels, name="p") as p:
                self._rows(first, rows, writer.bind(start + p, "panel"))

        self._tasks(blocks * tvm.integer(groups), task)

    def streamed(self) -> None:
        """Few rows: every panel is read once, and all rows take it in."""
        writer = self.kernel.writer

        def task(group: Any) -> None:
            with writer.loop(self.kernel.sizes(self.count), name="m") as m:
                self._wide(self._row(m), writer.bind(group * tvm.integer(_WIDE), "panel"))

        self._tasks(tvm.integer(-(-self.panels // _WIDE)), task)

    def each_row(self) -> None:
        """Rows one by one, inside of other kernels."""
        writer, free = self.kernel.writer, [a for a in range(len(self.lead)) if a not in self.held]

        def row(counters: tuple[Any, ...]) -> None:
            at = {**self.held, **dict(zip(free, counters, strict=True))}
            lead = self.kernel.frame.index(self.lead, tuple(at[a] for a in range(len(self.lead))))
            with writer.loop(-(-self.panels // _WIDE), name="group") as group:
                self._wide(lead, writer.bind(group * tvm.integer(_WIDE), "panel"))

        writer.nest([self.kernel.sizes(self.lead[a]) for a in free], row)

    def _wide(self, row: Index, first: Any) -> None:
        """One row and several panels: sums enough to keep the multipliers busy."""
        last = self.panels % _WIDE

        def some(count: int) -> Callable[[], None]:
            return lambda: self._tile([row], [first + tvm.integer(i) for i in range(count)])

        if not last:
            some(_WIDE)()
        elif self.panels < _WIDE:
            some(last)()
        else:
            whole = first + tvm.integer(_WIDE) <= tvm.integer(self.panels)
            self.kernel.writer.choose(whole, some(_WIDE), some(last))

    def _tasks(self, count: Any, task: Callable[[Any], None]) -> None:
        def run(kind: str) -> Callable[[], None]:
            def loops() -> None:
                with self.kernel.writer.loop(count, kind, "task") as place:
                    task(place)

            return loops

        self.kernel.when_large(self.count * self.N * self.K, run("parallel"), run("serial"))

    def _rows(self, first: Any, rows: Any, panel: Any) -> None:
        """Full tiles, then the rows that are left."""
        writer = self.kernel.writer
        full = tvm.call("floordiv", rows, tvm.integer(_TILE))
        with writer.loop(full, name="tile") as tile:
            start = writer.bind(first + tile * tvm.integer(_TILE), "m")
            self._tile([self._row(start + tvm.integer(r)) for r in range(_TILE)], [panel])
        with writer.loop(rows - full * tvm.integer(_TILE), name="rest") as rest:
            self._tile([self._row(first + full * tvm.integer(_TILE) + rest)], [panel])

    def _row(self, m: Any) -> Index:
        return self.kernel.frame.index(self.lead, flat=m)

    def _tile(self, rows: Sequence[Index], panels: Sequence[Any]) -> None:
        """Some panels for some rows: accumulate over all terms, then pass the sums on."""
        writer, wide = self.kernel.writer, len(panels) * PANEL
        sums = writer.filled(self.dtype, len(rows) * wide, number(0, self.dtype), PANEL)
        place = self.kernel.frame.places[self.weight]
        bases = [writer.bind(panel * tvm.integer(self.K * PANEL), "base") for panel in panels]
        starts = [writer.bind(row.flat * tvm.integer(self.K), "row") for row in rows]
        with writer.loop(self.K, name="k") as k:
            for r, start in enumerate(starts):
                index = self.kernel.frame.index(self.x.type.shape, flat=start + k)
                term = tvm.cast(self.dtype, self.kernel.frame.at(self.x, index))
                for q, base in enumerate(bases):
                    with writer.loop(PANEL, "vectorized", "l") as lane:
                        here = base + k * tvm.integer(PANEL) + lane
                        found = tvm.cast(self.dtype, place.read(here))
                        spot = tvm.integer(r * wide + q * PANEL) + lane
                        writer.store(sums, spot, sums[spot] + term * found)
        for q, panel in enumerate(panels):
            self._finish(rows, sums, panel, q * PANEL, wide)

    def _finish(self, rows: Sequence[Index], sums: Any, panel: Any, offset: int, wide: int) -> None:
        def some(lanes: int) -> Callable[[], None]:
            return lambda: self._pass(rows, sums, panel, lanes, offset, wide)

        rest = self.N % PANEL
        if not rest:
            some(PANEL)()
            return
        whole = panel < tvm.integer(self.panels - 1)
        self.kernel.writer.choose(whole, some(PANEL), some(rest))

    def _pass(
        self,
        rows: Sequence[Index],
        sums: Any,
        panel: Any,
        lanes: int,
        offset: int,
        wide: int,
    ) -> None:
        """Give the sums of a panel to the epilogue."""
        kind = self.kernel.vectors if lanes == PANEL else "serial"
        for r, row in enumerate(rows):
            with self.kernel.writer.loop(lanes, kind, "l") as lane:
                n = panel * tvm.integer(PANEL) + lane
                flat = row.flat * tvm.integer(self.N) + n
                axes = lambda row=row, n=n: (*row.axes, n)  # noqa: E731
                index = Index(self.kernel.sizes, self.y.type.shape, axes, flat)
                total = sums[tvm.integer(r * wide + offset) + lane]
                if self.bias is not None:
                    here = self.kernel.frame.index(self.bias.type.shape, (n,))
                    total = total + tvm.cast(self.dtype, self.kernel.frame.at(self.bias, here))
                self.kernel.sink(index, tvm.cast(COMPUTED[self.y.type.dtype], total))


def _unpacked(kernel: Kernel, op: Op) -> None:
    """``linear`` with a weight that is no weight of the model: one sum per element."""
    x, weight, bias = present(op.operands[0]), present(op.operands[1]), op.operands[2]
    (y,) = op.results
    K, dtype = weight.type.shape[1], accumulated(op, x)

    def body(index: Index) -> None:
        *lead, n = index.axes

        def term(k: Any) -> Any:
            own = kernel.frame.at(x, kernel.frame.index(x.type.shape, (*lead, k)))
            other = kernel.frame.at(weight, kernel.frame.index(weight.type.shape, (n, k)))
            return tvm.cast(dtype, own) * tvm.cast(dtype, other)

        total = fold_row(kernel, K, term, number(0, dtype), lambda a, b: a + b, dtype)
        if bias is not None:
            here = kernel.frame.index(bias.type.shape, (n,))
            total = total + tvm.cast(dtype, kernel.frame.at(bias, here))
        kernel.sink(index, tvm.cast(COMPUTED[y.type.dtype], total))

    held = {a: e for a, e in kernel.held(x).items()}
    kernel.spread(y.type.shape, body, held, cost=_cost(K))


def _cost(K: Size) -> int:
    return K if isinstance(K, int) else 64


def matmul(kernel: Kernel, op: Op) -> None:
    """``matmul``: tiles of four rows by sixteen columns."""
    x, y = op.values
    (z,) = op.results
    M, N = z.type.shape[-2:]
    K, dtype, rank = x.type.shape[-1], accumulated(op, x), z.type.rank
    held = dict(kernel.held(z))
    loops = [a for a in range(rank - 1) if a not in held]
    writer, frame = kernel.writer, kernel.frame

    def element(value: Value, at: dict[int, Any], row: Any, column: Any) -> Any:
        """An element of an operand whose leading axes broadcast."""
        shape = value.type.shape
        offset = rank - len(shape)
        axes = [tvm.integer(0) if shape[i] == 1 else at[i + offset] for i in range(len(shape) - 2)]
        return tvm.cast(dtype, frame.at(value, frame.index(shape, (*axes, row, column))))

    def tile(at: dict[int, Any], rows: Sequence[Any], first: Any, lanes: int) -> None:
        kind = "vectorized" if lanes > 1 and dtype.startswith("float") else "serial"
        last = "serial" if kind == "serial" else kernel.vectors
        vector = min(lanes, PANEL)
        width = vector if kind == "vectorized" else 1
        sums = writer.filled(dtype, len(rows) * lanes, number(0, dtype), width)
        with writer.loop(kernel.sizes(K), name="k") as k:
            terms = [element(x, at, row, k) for row in rows]
            for (r, term), start in product(enumerate(terms), range(0, lanes, vector)):
                with writer.loop(vector, kind, "l") as lane:
                    spot = tvm.integer(r * lanes + start) + lane
                    found = element(y, at, k, first + tvm.integer(start) + lane)
                    writer.store(sums, spot, sums[spot] + term * found)
        for r, row in enumerate(rows):
            for start in range(0, lanes, vector):
                with writer.loop(vector, last, "l") as lane:
                    column = first + tvm.integer(start) + lane
                    axes = {**at, rank - 2: row, rank - 1: column}
                    index = frame.index(z.type.shape, tuple(axes[a] for a in range(rank)))
                    total = sums[tvm.integer(r * lanes + start) + lane]
                    kernel.sink(index, tvm.cast(COMPUTED[z.type.dtype], total))

    def across(at: dict[int, Any], rows: Sequence[Any]) -> None:
        def step(first: Any, kind: str) -> None:
            tile(at, rows, first, PANEL if kind == "vector" else 1)

        if rank - 1 in held:
            tile(at, rows, held[rank - 1], 1)
        elif len(rows) == 1 and isinstance(N, int) and N % (_WIDE * PANEL) == 0:
            with writer.loop(N // (_WIDE * PANEL), name="c") as c:
                tile(at, rows, c * tvm.integer(_WIDE * PANEL), _WIDE * PANEL)
        else:
            kernel.chunks(N, step, PANEL)

    def single(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(loops, counters, strict=True))}
        across(at, [at[rank - 2]])

    if M == 1 or rank - 2 in held:
        kernel.rows(tuple(z.type.shape[a] for a in loops), single, _cost(K), N)
        return
    outer = loops[:-1]
    full = tvm.call("floordiv", kernel.sizes(M), tvm.integer(_BLOCK))

    def blocks(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(outer, counters, strict=True))}
        with writer.loop(full, name="block") as block:
            start = writer.bind(block * tvm.integer(_BLOCK), "m")
            across(at, [start + tvm.integer(r) for r in range(_BLOCK)])
        with writer.loop(kernel.sizes(M) - full * tvm.integer(_BLOCK), name="rest") as rest:
            across(at, [full * tvm.integer(_BLOCK) + rest])

    def in_order() -> None:
        writer.nest([kernel.sizes(z.type.shape[a]) for a in outer], blocks)

    def spread() -> None:
        shape = tuple(z.type.shape[a] for a in outer)
        count = kernel.sizes.product(shape)
        steps = full + tvm.integer(1)
        with writer.loop(count * steps, "parallel", "task") as task:
            flat, step = (tvm.call(n, task, steps) for n in ("floordiv", "floormod"))
            axes = frame.index(shape, flat=flat).axes
            at = {**held, **dict(zip(outer, axes, strict=True))}

            def whole() -> None:
                start = writer.bind(step * tvm.integer(_BLOCK), "m")
                across(at, [start + tvm.integer(r) for r in range(_BLOCK)])

            def left() -> None:
                with writer.loop(kernel.sizes(M) - full * tvm.integer(_BLOCK), name="rest") as rest:
                    across(at, [full * tvm.integer(_BLOCK) + rest])

            writer.choose(step < full, whole, left)

    total: Size = _cost(K) * N
    for a in loops:
        total = total * z.type.shape[a]
    kernel.when_large(total, spread, in_order)
