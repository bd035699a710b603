"""First-order recurrences along a sequence: many channels side by side, step by step.

The operands are computed on the way where nothing else reads them. B batch, S sequence, D channels.
"""

from __future__ import annotations

from typing import Any

from seqmix_ir.dims import Size, ceildiv
from seqmix_ir.graph import Op
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, present

__all__ = ["linear_scan", "next_state"]

_CHANNELS = 1024
"""Channels of a task: their states stay in the first-level cache."""


def linear_scan(kernel: Kernel, op: Op) -> None:
    """Tasks of some channels of one row of the batch; each is a loop over time."""
    a = present(op.operands[0])
    B, S, D = a.type.shape
    wide = D if isinstance(D, int) and D < _CHANNELS else _CHANNELS

    def task(counters: tuple[Any, ...]) -> None:
        b, block = counters
        first = kernel.writer.bind(block * tvm.integer(wide), "first")
        _steps(kernel, op, b, first, _count(kernel, D, first, wide), wide)

    before, kernel.writer.apart = kernel.writer.apart, True
    kernel.rows((B, ceildiv(D, wide)), task, kernel.cost + 2, S * wide)
    kernel.writer.apart = before


def _count(kernel: Kernel, D: Size, first: Any, wide: int) -> Any:
    if isinstance(D, int) and D % wide == 0:
        return tvm.integer(wide)
    return kernel.writer.bind(tvm.minimum(tvm.integer(wide), kernel.sizes(D) - first), "count")


def _steps(kernel: Kernel, op: Op, b: Any, first: Any, count: Any, wide: int) -> None:
    """All steps of some channels."""
    a, x, initial = map(present, op.operands)
    h, last = op.results
    dtype, writer, frame = COMPUTED[a.type.dtype], kernel.writer, kernel.frame
    state = writer.local(dtype, wide)
    with writer.loop(count, name="d") as d:
        at = frame.index(initial.type.shape, (b, first + d))
        writer.store(state, d, tvm.cast(dtype, frame.at(initial, at)))
    with writer.loop(kernel.sizes(a.type.shape[1]), name="t") as t, writer.loop(count) as d:
        index = frame.index(a.type.shape, (b, t, first + d))
        new = next_state(op, frame.at(a, index), frame.at(x, index), state[d])
        new = writer.bind(new, "h")
        writer.store(state, d, new)
        frame.save(h, index, new)
    with writer.loop(count, name="d") as d:
        at = frame.index(last.type.shape, (b, first + d))
        element = writer.bind(state[d], "last")
        frame.save(last, at, tvm.cast(COMPUTED[last.type.dtype], element))


def next_state(op: Op, a: Any, x: Any, state: Any) -> Any:
    """The state after an element: ``a * h + x``, or ``max(a + h, x)``."""
    if op.defn.attributes()["semiring"] == "max_plus":
        return f.larger(a + state, x)
    return a * state + x
