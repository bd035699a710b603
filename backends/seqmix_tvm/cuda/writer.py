"""Statements of a kernel for a GPU: launches of thread blocks, barriers, shared memory, shuffles.

What stands outside of a launch runs on the host, in order; a launch begins when those before it
have ended. A block has ``warps`` rows of 32 threads: ``threadIdx.x`` is the lane in a warp,
``threadIdx.y`` the warp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from seqmix.errors import BackendError
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.writer import Writer

__all__ = ["LANES", "CudaWriter", "Threads"]

LANES = 32
"""Threads of a warp."""


@dataclass(frozen=True)
class Threads:
    """Where the running thread is: its block, its warp in the block, its lane in the warp."""

    block: tvm.Expr
    warp: tvm.Expr
    lane: tvm.Expr
    warps: int

    @property
    def count(self) -> int:
        """Threads of a block."""
        return LANES * self.warps

    @property
    def place(self) -> tvm.Expr:
        """The thread's number in its block."""
        return self.warp * tvm.integer(LANES) + self.lane


class CudaWriter(Writer):
    """A writer whose loops are serial in each thread; threads come from :meth:`launch`."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        super().__init__()
        self._threads: Threads | None = None

    @property
    def threads(self) -> Threads:
        """The threads of the open launch; BackendError outside of one."""
        if self._threads is None:
            raise BackendError("a kernel for a GPU uses threads outside of a launch")
        return self._threads

    @property
    def inside(self) -> bool:
        """Whether a launch is open."""
        return self._threads is not None

    def loop(self, extent: tvm.Expr | int, kind: str = "serial", name: str = "i") -> Any:
        """A serial loop of the thread; ``unrolled`` stays, vectors are threads here."""
        if kind == "parallel":
            raise BackendError("a loop over tasks has no form for a GPU")
        return super().loop(extent, "unrolled" if kind == "unrolled" else "serial", name)

    @contextmanager
    def launch(self, blocks: tvm.Expr | int, warps: int) -> Iterator[Threads]:
        """A grid of blocks that run what is written inside; none is launched where there are 0."""
        if self.inside:
            raise BackendError("a launch is open already")
        names = [tvm.var(name, "int32") for name in ("bx", "ty", "tx")]
        block, warp, lane = (tvm.cast("int64", name) for name in names)
        self._threads = Threads(block, warp, lane, warps)
        with self.block() as body:
            yield self._threads
        self._threads = None
        count = tvm.integer(blocks) if isinstance(blocks, int) else blocks
        launched = tvm.launch(names, (count, warps, LANES), tvm.block(body))
        if not isinstance(blocks, int):
            launched = tvm.branch(count > tvm.integer(0), launched)
        if count is not blocks and blocks == 0:
            return
        self.emit(launched)

    def sync(self) -> None:
        """Wait for all threads of the block; what they wrote is seen by all of them then."""
        self.emit(tvm.barrier())

    def shared(self, dtype: str, length: int) -> tvm.Buffer:
        """Memory of the block, which all of its threads see."""
        made = tvm.buffer("shared", dtype, [tvm.integer(length)], "shared")
        self.emit(tvm.shared_memory(made))
        return made

    def over_warp(
        self, value: tvm.Expr, combine: Callable[[tvm.Expr, tvm.Expr], tvm.Expr]
    ) -> tvm.Expr:
        """The values of all lanes combined; every lane gets the result."""
        dtype = tvm.dtype_of(value)
        wide = dtype if dtype in ("float32", "float64", "int32", "int64") else "int32"
        total = self.local(wide, 1)
        zero = tvm.integer(0)
        self.store(total, zero, tvm.cast(wide, value))
        for mask in (16, 8, 4, 2, 1):
            own = self.bind(total[zero], "own")
            other = self.hide(tvm.shuffled(own, mask))
            made = combine(tvm.cast(dtype, own), tvm.cast(dtype, other))
            self.store(total, zero, tvm.cast(wide, made))
        return self.bind(tvm.cast(dtype, total[zero]), "combined")

    def _by_memory(self, value: tvm.Expr) -> tvm.Expr:
        """As it is for a CPU; on the host there is nothing to hide: sizes are few."""
        return super()._by_memory(value) if self.inside else value
