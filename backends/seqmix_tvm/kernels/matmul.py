"""Matrix products of any two tensors, none of which was packed for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.reduction import accumulated, fold_row
from seqmix_tvm.kernels.tile import PANEL
from seqmix_tvm.place import COMPUTED, Index, present
from seqmix_tvm.rules.layout import number

__all__ = ["matmul", "unpacked_linear"]

_WIDE = 4
"""Panels of columns that one row is multiplied with at once."""

_BLOCK = 4
"""Rows of a tile of a product whose operands are not packed."""


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


def unpacked_linear(kernel: Kernel, op: Op) -> None:
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
