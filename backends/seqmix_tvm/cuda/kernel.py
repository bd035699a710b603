"""Loops over elements and rows as threads of a GPU.

The kernels of :mod:`seqmix_tvm.kernels` say what is done for an element or a row, and ask their
kernel for the loops around it. Here these become threads: of a whole grid, or, in the body of a
scan, of the one block that steps through time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.writer import LANES, CudaWriter
from seqmix_tvm.frame import Frame
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import Index
from seqmix_tvm.plan import Group

__all__ = ["BlockKernel", "CudaKernel", "GridKernel", "ceildiv_expr"]

_WARPS = 4
"""Warps of a block whose threads have nothing to do with each other."""


def ceildiv_expr(number: tvm.Expr, by: int) -> tvm.Expr:
    """The quotient, rounded up."""
    return tvm.call("floordiv", number + tvm.integer(by - 1), tvm.integer(by))


@dataclass
class CudaKernel(Kernel, ABC):
    """What grids and blocks have in common."""

    @property
    def threads(self) -> CudaWriter:
        """The writer, which knows of threads."""
        return cast("CudaWriter", self.writer)

    @property
    def vectors(self) -> str:
        """Lanes of vectors are threads: loops are serial."""
        return "serial"

    def write(self) -> None:
        """Write the loops of the group."""
        from seqmix_tvm.cuda.table import write_kernel

        write_kernel(self)

    def inside(
        self,
        frame: Frame,
        group: Group,
        fixed: Mapping[Value, Mapping[int, tvm.Expr]],
        scratch: Any = (),
    ) -> Kernel:
        """A kernel of the body of this one: of the threads of its block."""
        return BlockKernel(self.writer, frame, group, fixed, serial=True, scratch=list(scratch))

    @abstractmethod
    def threads_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """``body`` for each number below ``count``, by as many threads."""

    @abstractmethod
    def warps_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """``body`` for each number below ``count``, by a warp each."""

    @abstractmethod
    def blocks_over(self, count: tvm.Expr, warps: int, body: Callable[[tvm.Expr], None]) -> None:
        """``body`` for each number below ``count``, by a block each; it may hold barriers.

        A kernel inside of a launch has the warps that there are.
        """

    def turns(self, count: int, body: Callable[[tvm.Expr], None]) -> None:
        """``body`` for each number below ``count``, by the threads of the block in turn."""
        writer, threads = self.threads, self.threads.threads
        with writer.loop(-(-count // threads.count), name="turn") as turn:
            e = writer.bind(turn * tvm.integer(threads.count) + threads.place, "e")
            if count % threads.count:
                writer.choose(e < tvm.integer(count), lambda: body(e))
            else:
                body(e)

    def spread(
        self,
        shape: tuple[Size, ...],
        body: Callable[[Index], None],
        held: Mapping[int, tvm.Expr] | None = None,
        cost: int | None = None,
    ) -> None:
        """A thread per element."""
        if 0 in shape:
            return
        fixed = held or {}
        free = [axis for axis in range(len(shape)) if axis not in fixed]
        lead = tuple(shape[axis] for axis in free)

        def element(i: tvm.Expr) -> None:
            if not fixed:
                body(self.frame.index(shape, flat=i))
                return
            at = {**fixed, **dict(zip(free, self.frame.index(lead, flat=i).axes, strict=True))}
            body(self.frame.index(shape, tuple(at[axis] for axis in range(len(shape)))))

        self.threads_over(self.sizes.product(lead), element)

    def flat(self, shape: tuple[Size, ...], body: Callable[[Index], None]) -> None:
        """A thread per element."""
        self.spread(shape, body)

    def rows(
        self,
        lead: tuple[Size, ...],
        body: Callable[[tuple[Any, ...]], None],
        cost: int,
        length: Size,
    ) -> None:
        """A thread per row."""
        if 0 not in lead:
            self.threads_over(
                self.sizes.product(lead), lambda i: body(self.frame.index(lead, flat=i).axes)
            )

    def apart_along(
        self,
        shape: tuple[Size, ...],
        free: Sequence[int],
        axis: int,
        body: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """A thread for all elements along the axis, one after another."""
        outer = [a for a in free if a != axis]

        def line(counters: tuple[Any, ...]) -> None:
            at = dict(zip(outer, counters, strict=True))
            length = self.sizes(shape[axis]) if axis in free else tvm.integer(1)
            with self.writer.loop(length, name="t") as t:
                body(tuple({**at, axis: t}[a] for a in free))

        self.rows(tuple(shape[a] for a in outer), line, 1, 1)

    def team_rows(
        self,
        lead: tuple[Size, ...],
        body: Callable[[tuple[Any, ...]], None],
        cost: int,
        length: Size,
    ) -> None:
        """A warp per row."""
        if 0 in lead:
            return

        def row(i: tvm.Expr) -> None:
            self.lane = self.threads.threads.lane
            body(self.frame.index(lead, flat=i).axes)
            self.lane = None

        self.warps_over(self.sizes.product(lead), row)

    @contextmanager
    def along(self, length: Size | tvm.Expr) -> Iterator[Any]:
        """A loop along a row; the lanes of its warp take turns."""
        extent = self.sizes(length) if isinstance(length, int | Dim) else length
        if self.lane is None:
            with self.writer.loop(extent, name="j") as j:
                yield j
            return
        writer = self.writer
        with writer.loop(ceildiv_expr(extent, LANES), name="c") as c:
            j = writer.bind(c * tvm.integer(LANES) + self.lane, "j")
            with writer.block() as body:
                yield j
            writer.emit(tvm.branch(j < extent, tvm.block(body)))

    def once(self, body: Callable[[], None]) -> None:
        """What one lane of a warp does for all of them."""
        if self.lane is None:
            body()
        else:
            self.writer.choose(tvm.equal(self.lane, tvm.integer(0)), body)

    def fold(
        self, length: Size, element: Callable[[Any], Any], start: Any, combine: Any, dtype: str
    ) -> Any:
        """The elements of a row combined: each lane its own, then those of all lanes."""
        writer, zero = self.threads, tvm.integer(0)
        total = writer.local(dtype, 1)
        writer.store(total, zero, start)
        with self.along(length) as j:
            writer.store(total, zero, combine(total[zero], element(j)))
        return writer.over_warp(total[zero], combine)


@dataclass
class GridKernel(CudaKernel):
    """A kernel of its own: every loop over elements is a launch."""

    def threads_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """As many threads as numbers, in blocks."""
        size = LANES * _WARPS
        with self.threads.launch(ceildiv_expr(count, size), _WARPS) as threads:
            i = self.writer.bind(threads.block * tvm.integer(size) + threads.place, "i")
            self.writer.choose(i < count, lambda: body(i))

    def warps_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """As many warps as numbers, in blocks."""
        with self.threads.launch(ceildiv_expr(count, _WARPS), _WARPS) as threads:
            i = self.writer.bind(threads.block * tvm.integer(_WARPS) + threads.warp, "i")
            self.writer.choose(i < count, lambda: body(i))

    def blocks_over(self, count: tvm.Expr, warps: int, body: Callable[[tvm.Expr], None]) -> None:
        """A grid of blocks."""
        with self.threads.launch(count, warps) as threads:
            body(threads.block)


@dataclass
class BlockKernel(CudaKernel):
    """A kernel inside of a launch: the threads of the block take turns, then wait for each other.

    All of them must come here: nothing that asks for one may stand in a branch that differs
    between threads.
    """

    def threads_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """The block's threads, again and again."""
        threads = self.threads.threads
        self._turns(count, threads.count, threads.place, body)

    def warps_over(self, count: tvm.Expr, body: Callable[[tvm.Expr], None]) -> None:
        """The block's warps, again and again."""
        threads = self.threads.threads
        self._turns(count, threads.warps, threads.warp, body)

    def blocks_over(self, count: tvm.Expr, warps: int, body: Callable[[tvm.Expr], None]) -> None:
        """The block itself, one number after another."""
        with self.writer.loop(count, name="task") as task:
            body(task)
            self.threads.sync()

    def _turns(
        self, count: tvm.Expr, many: int, own: tvm.Expr, body: Callable[[tvm.Expr], None]
    ) -> None:
        writer = self.threads
        with writer.loop(ceildiv_expr(count, many), name="turn") as turn:
            i = writer.bind(turn * tvm.integer(many) + own, "i")
            writer.choose(i < count, lambda: body(i))
        writer.sync()
