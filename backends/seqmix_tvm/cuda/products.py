"""Matrix products: tiles of shared memory where there are many rows, else a warp or thread per sum.

M rows, N columns, K terms. A block of 256 threads makes 64 rows by 64 columns, each thread four by
four of them in registers; the operands of some terms at a time lie in shared memory. The sums pass
through shared memory too: what follows the product is then written once, and stores side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import BlockKernel, CudaKernel, ceildiv_expr
from seqmix_tvm.cuda.writer import CudaWriter
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.reduction import accumulated, fold_row
from seqmix_tvm.place import COMPUTED
from seqmix_tvm.rules.layout import number

__all__ = ["At", "Product", "matmul"]

_SIDE = 64
"""Rows, and columns, of a tile."""

_WARPS = 8
_THREADS = 32 * _WARPS
_EACH = 4
"""Rows, and columns, of a thread."""

_ACROSS = _SIDE // _EACH
_PITCH = _SIDE + 1
"""Distance of terms in shared memory: no two lanes meet in a bank."""

_DEPTH = {4: 16, 8: 8}
"""Terms that are staged at once, by the bytes of an element: shared memory is limited."""

_MANY = 16
"""Rows from which on tiles pay."""

At: TypeAlias = "Sequence[Any]"


@dataclass
class Product:
    """The sums over k of ``left(at, m, k) * right(at, k, n)``, and where each goes."""

    kernel: CudaKernel
    dtype: str
    batch: tuple[Size, ...]
    M: Size
    N: Size
    K: Size
    left: Callable[[At, Any, Any], Any]
    right: Callable[[At, Any, Any], Any]
    give: Callable[[At, Any, Any, Any], None]
    terms_first: bool
    """Whether ``right`` has the terms of a column side by side in memory."""

    @property
    def writer(self) -> CudaWriter:
        return self.kernel.threads

    def tiled(self) -> None:
        """A block per tile."""
        sizes, bind = self.kernel.sizes, self.writer.bind
        down, across = (ceildiv_expr(sizes(size), _SIDE) for size in (self.M, self.N))
        with self.writer.launch(sizes.product(self.batch) * down * across, _WARPS) as threads:
            rest = bind(tvm.call("floordiv", threads.block, across), "rest")
            first = bind(tvm.call("floordiv", rest, down), "batch")
            m0 = bind(tvm.call("floormod", rest, down) * tvm.integer(_SIDE), "m0")
            n0 = bind(tvm.call("floormod", threads.block, across) * tvm.integer(_SIDE), "n0")
            at = self.kernel.frame.index(self.batch, flat=first).axes
            self._tile(at, m0, n0, bind(threads.place, "thread"))

    def _tile(self, at: At, m0: Any, n0: Any, thread: Any) -> None:
        writer, depth = self.writer, _DEPTH[tvm.bytes_of(self.dtype)]
        left, right = (writer.shared(self.dtype, depth * _PITCH) for _ in range(2))
        whole = writer.shared(self.dtype, _SIDE * _SIDE)
        sums = writer.filled(self.dtype, _EACH * _EACH, number(0, self.dtype), 1)
        row = writer.bind(tvm.call("floordiv", thread, tvm.integer(_ACROSS)), "row")
        column = writer.bind(tvm.call("floormod", thread, tvm.integer(_ACROSS)), "column")
        with writer.loop(ceildiv_expr(self.kernel.sizes(self.K), depth), name="step") as step:
            k0 = writer.bind(step * tvm.integer(depth), "k0")
            self._stage(left, thread, depth, True, lambda m, k: self._left(at, m0 + m, k0 + k))
            self._stage(
                right,
                thread,
                depth,
                self.terms_first,
                lambda n, k: self._right(at, n0 + n, k0 + k),
            )
            writer.sync()
            self._multiply(left, right, sums, row, column, depth)
            writer.sync()
        for i in range(_EACH):
            for j in range(_EACH):
                m = row * tvm.integer(_EACH) + tvm.integer(i)
                spot = m * tvm.integer(_SIDE) + column + tvm.integer(j * _ACROSS)
                writer.store(whole, spot, sums[tvm.integer(i * _EACH + j)])
        writer.sync()
        self._store(at, m0, n0, thread, whole)

    def _stage(self, target: Any, thread: Any, depth: int, terms_first: bool, element: Any) -> None:
        """Copy the terms of one operand; neighbours read what lies side by side."""
        writer = self.writer
        with writer.loop(_SIDE * depth // _THREADS, name="i") as i:
            e = writer.bind(thread + i * tvm.integer(_THREADS), "e")
            inner = tvm.integer(depth if terms_first else _SIDE)
            outer, fine = (tvm.call(n, e, inner) for n in ("floordiv", "floormod"))
            place, k = (outer, fine) if terms_first else (fine, outer)
            writer.store(target, k * tvm.integer(_PITCH) + place, element(place, k))

    def _left(self, at: At, m: Any, k: Any) -> Any:
        return self._guarded(lambda a, b: self.left(at, a, b), m, self.M, k)

    def _right(self, at: At, n: Any, k: Any) -> Any:
        return self._guarded(lambda a, b: self.right(at, b, a), n, self.N, k)

    def _guarded(self, read: Callable[[Any, Any], Any], place: Any, size: Size, k: Any) -> Any:
        """An element; rows past the last one repeat it, terms past the last one are 0."""
        bind, one = self.writer.bind, tvm.integer(1)
        limit, terms = self.kernel.sizes(size), self.kernel.sizes(self.K)
        k = bind(k, "k")
        inside = bind(k < terms, "inside")
        found = read(bind(tvm.minimum(place, limit - one)), bind(tvm.minimum(k, terms - one)))
        return tvm.select(inside, tvm.cast(self.dtype, found), number(0, self.dtype))

    def _multiply(
        self, left: Any, right: Any, sums: Any, row: Any, column: Any, depth: int
    ) -> None:
        writer = self.writer
        with writer.loop(depth, name="k") as k:
            base = writer.bind(k * tvm.integer(_PITCH), "base")
            mine = base + row * tvm.integer(_EACH)
            rows = [writer.bind(left[mine + tvm.integer(i)], "a") for i in range(_EACH)]
            spots = (base + column + tvm.integer(j * _ACROSS) for j in range(_EACH))
            columns = [writer.bind(right[spot], "b") for spot in spots]
            for i, a in enumerate(rows):
                for j, b in enumerate(columns):
                    spot = tvm.integer(i * _EACH + j)
                    writer.store(sums, spot, sums[spot] + a * b)

    def _store(self, at: At, m0: Any, n0: Any, thread: Any, whole: Any) -> None:
        writer, sizes = self.writer, self.kernel.sizes
        with writer.loop(_SIDE * _SIDE // _THREADS, name="i") as i:
            e = writer.bind(thread + i * tvm.integer(_THREADS), "e")
            m = writer.bind(m0 + tvm.call("floordiv", e, tvm.integer(_SIDE)), "m")
            n = writer.bind(n0 + tvm.call("floormod", e, tvm.integer(_SIDE)), "n")
            there = tvm.both(m < sizes(self.M), n < sizes(self.N))
            writer.choose(there, lambda: self.give(at, m, n, whole[e]))

    def total(self, at: At, m: Any, n: Any) -> Any:
        """One sum, by one thread or by the lanes of a warp."""

        def term(k: Any) -> Any:
            own, other = self.left(at, m, k), self.right(at, k, n)
            return tvm.cast(self.dtype, own) * tvm.cast(self.dtype, other)

        zero = number(0, self.dtype)
        return fold_row(self.kernel, self.K, term, zero, lambda a, b: a + b, self.dtype)

    def choose(self, few: Callable[[], None]) -> None:
        """Tiles where there are rows and columns enough, else what ``few`` writes."""
        if isinstance(self.kernel, BlockKernel):
            few()
            return
        sizes = (self.M, self.N)
        if any(isinstance(size, int) and size < _MANY for size in sizes):
            few()
            return
        unknown = [size for size in sizes if not isinstance(size, int)]
        if not unknown:
            self.tiled()
            return
        many = [self.kernel.sizes(size) >= tvm.integer(_MANY) for size in unknown]
        enough = many[0] if len(many) == 1 else tvm.both(*many)
        self.writer.choose(enough, self.tiled, few)


def matmul(kernel: Kernel, op: Op) -> None:
    """``matmul``: tiles, or a thread per element."""
    made = cast("CudaKernel", kernel)
    x, y = op.values
    (z,) = op.results
    rank, frame, dtype = z.type.rank, kernel.frame, accumulated(op, x)
    M, N = z.type.shape[-2:]

    def element(value: Value, at: At, row: Any, column: Any) -> Any:
        """An element of an operand whose leading axes broadcast."""
        shape = value.type.shape
        offset = rank - len(shape)
        axes = [tvm.integer(0) if shape[i] == 1 else at[i + offset] for i in range(len(shape) - 2)]
        return frame.at(value, frame.index(shape, (*axes, row, column)))

    def finish(at: At, m: Any, n: Any, total: Any) -> None:
        index = frame.index(z.type.shape, (*at, m, n))
        kernel.sink(index, tvm.cast(COMPUTED[z.type.dtype], total))

    product = Product(
        made, dtype, z.type.shape[:-2], M, N, x.type.shape[-1],
        lambda at, m, k: element(x, at, m, k), lambda at, k, n: element(y, at, k, n),
        finish, terms_first=_is_turned(kernel, y),
    )  # fmt: skip

    def few() -> None:
        def one(index: Any) -> None:
            *at, m, n = index.axes
            finish(at, m, n, product.total(at, m, n))

        kernel.spread(z.type.shape, one, kernel.held(z))

    product.choose(few)


def _is_turned(kernel: Kernel, value: Value) -> bool:
    """Whether a matrix lies in memory with its last two axes exchanged."""
    op = kernel.frame.producer(value)
    if op is None or op.name != "transpose":
        return False
    perm = op.defn.attributes()["perm"]
    return bool(perm[-1] % len(perm) == len(perm) - 2)
