"""The products inside of a loop over time: a few rows with a matrix that stays the same.

The matrix lies in panels of 16 columns, ``[.., ceil(N / 16), K, 16]``: a weight of ``linear`` does
so from the start, that of ``matmul`` is laid so before the loop. Rows of a batch that are stepped
together read it once for all of them.

N columns, K terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqmix_ir.graph import Op, Value
from seqmix_ir.types import FLOATS, TensorType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.product import PANEL, packed_index
from seqmix_tvm.kernels.reduction import accumulated
from seqmix_tvm.place import COMPUTED, Index, Place, known, present, ravel
from seqmix_tvm.rules.layout import number

__all__ = ["in_panels", "panel_place", "panel_type", "shares_matrix", "step_product"]

_WIDE = 4
"""Panels that one row is multiplied with at once: sums enough to keep the multipliers busy."""


def in_panels(value: Value) -> bool:
    """Whether a matrix can be laid in panels."""
    shape = value.type.shape
    if value.type.dtype not in FLOATS or len(shape) < 2:
        return False
    return all(isinstance(size, int) for size in shape[-2:])


def panel_type(type: TensorType) -> TensorType:
    """The memory for a matrix ``[.., K, N]`` in panels, in the type that kernels compute in."""
    *lead, K, N = type.shape
    dtype = type.dtype if type.dtype == "f64" else "f32"
    return TensorType(dtype, (*lead, -(-known(N) // PANEL), K, PANEL))


def panel_place(memory: Place) -> Place:
    """Where the elements of a matrix are in the memory for its panels."""
    return Place(memory.buffer, memory.dtype, _panel_index)


def _panel_index(index: Index) -> Any:
    *lead, k, n = index.axes
    K, N = (known(size) for size in index.shape[-2:])
    count = -(-N // PANEL)
    outer = ravel(index.sizes, tuple(lead), index.shape[:-2])
    panel = tvm.call("floordiv", n, tvm.integer(PANEL))
    lane = tvm.call("floormod", n, tvm.integer(PANEL))
    return ((outer * tvm.integer(count) + panel) * tvm.integer(K) + k) * tvm.integer(PANEL) + lane


def shares_matrix(op: Op, axes: Mapping[Value, int | None]) -> bool:
    """Whether rows along an axis, whose place in each value is given, meet one matrix."""
    if op.name not in ("linear", "matmul"):
        return False
    x, matrix = op.operands[:2]
    if x is None or matrix is None or axes.get(x) is None or axes.get(matrix) is not None:
        return False
    return isinstance(op.results[0].type.shape[-1], int)


def step_product(kernels: Sequence[Kernel], op: Op) -> bool:
    """Write the product for one row per kernel; False where the matrix lies in no panels."""
    product = _Product(kernels, op)
    if not product.known:
        return False
    product.run()
    return True


class _Product:
    def __init__(self, kernels: Sequence[Kernel], op: Op) -> None:
        self.kernels, self.op = kernels, op
        self.writer, self.frame = kernels[0].writer, kernels[0].frame
        self.x, self.matrix = map(present, op.operands[:2])
        self.z = op.results[0]
        self.dtype = accumulated(op, self.x)
        self.held = [kernel.held(self.z) for kernel in kernels]
        self.wide = _WIDE if len(kernels) == 1 else 1

    @property
    def known(self) -> bool:
        """Whether the matrix can be read a panel at a time."""
        place = self.frame.places.get(self.matrix)
        wanted = packed_index if self.op.name == "linear" else _panel_index
        if place is None or place.where is not wanted or not isinstance(self.z.type.shape[-1], int):
            return False
        return self.dtype.startswith("float") and self.z.type.rank - 1 not in self.held[0]

    def run(self) -> None:
        """Panel after panel, for every row that no loop outside stands for."""
        shape, wide, writer = self.z.type.shape, self.wide, self.writer
        free = [axis for axis in range(len(shape) - 1) if axis not in self.held[0]]
        full, rest = divmod(known(shape[-1]), PANEL)

        def rows(counters: tuple[Any, ...]) -> None:
            more = dict(zip(free, counters, strict=True))
            at = [{**held, **more} for held in self.held]
            if full >= wide:
                with writer.loop(full // wide, name="p") as group:
                    self._panels(at, group * tvm.integer(wide), wide, PANEL)
            if full % wide:
                self._panels(at, tvm.integer(full - full % wide), full % wide, PANEL)
            if rest:
                self._panels(at, tvm.integer(full), 1, rest)

        writer.nest([self.kernels[0].sizes(shape[axis]) for axis in free], rows)

    def _panels(self, at: list[dict[int, Any]], first: Any, count: int, lanes: int) -> None:
        """The sums of some panels for all rows, passed on to what follows the product."""
        writer = self.writer
        kind = "vectorized" if lanes == PANEL else "serial"
        vector = lanes if kind == "vectorized" else 1
        sums = writer.filled(self.dtype, len(at) * count * lanes, number(0, self.dtype), vector)
        K = tvm.integer(known(self.x.type.shape[-1]))
        lead = self._lead(at[0])
        bases = [
            writer.bind((lead + first + tvm.integer(q)) * K * tvm.integer(PANEL), "base")
            for q in range(count)
        ]
        place = self.frame.places[self.matrix]
        with writer.loop(K, name="k") as k:
            terms = [tvm.cast(self.dtype, self._term(row, k)) for row in at]
            for q, base in enumerate(bases):
                with writer.loop(lanes, kind, "l") as lane:
                    found = place.read(base + k * tvm.integer(PANEL) + lane)
                    found = writer.bind(tvm.cast(self.dtype, found), "w")
                    for r, term in enumerate(terms):
                        spot = tvm.integer((r * count + q) * lanes) + lane
                        writer.store(sums, spot, sums[spot] + term * found)
        for r, q in ((r, q) for r in range(len(at)) for q in range(count)):
            self._pass(r, at[r], sums, first + tvm.integer(q), (r * count + q) * lanes, lanes)

    def _pass(
        self, r: int, row: dict[int, Any], sums: Any, panel: Any, offset: int, lanes: int
    ) -> None:
        kernel, frame = self.kernels[r], self.frame
        last = kernel.vectors if lanes == PANEL else "serial"
        with self.writer.loop(lanes, last, "l") as lane:
            n = panel * tvm.integer(PANEL) + lane
            axes = (*(row[axis] for axis in range(self.z.type.rank - 1)), n)
            total = sums[tvm.integer(offset) + lane]
            bias = self.op.operands[2] if self.op.name == "linear" else None
            if bias is not None:
                here = frame.index(bias.type.shape, (n,))
                total = total + tvm.cast(self.dtype, frame.at(bias, here))
            total = tvm.cast(COMPUTED[self.z.type.dtype], total)
            kernel.sink(frame.index(self.z.type.shape, axes), total)

    def _outer(self, value: Value, row: dict[int, Any], last: int) -> tuple[Any, ...]:
        """The index of all axes of an operand but the last ones; axes of size 1 are repeated."""
        shape = value.type.shape
        offset = self.z.type.rank - len(shape)
        return tuple(
            tvm.integer(0) if shape[a] == 1 else row[a + offset] for a in range(len(shape) - last)
        )

    def _term(self, row: dict[int, Any], k: Any) -> Any:
        shape = self.x.type.shape
        return self.frame.at(self.x, self.frame.index(shape, (*self._outer(self.x, row, 1), k)))

    def _lead(self, row: dict[int, Any]) -> Any:
        """The number of panels before those of the matrix of a row."""
        if self.op.name == "linear":
            return tvm.integer(0)
        shape = self.matrix.type.shape
        outer = ravel(self.frame.sizes, self._outer(self.matrix, row, 2), shape[:-2])
        return outer * tvm.integer(-(-known(shape[-1]) // PANEL))
