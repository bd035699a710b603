"""First-order recurrences on a GPU: a thread per channel, which steps through time.

Threads side by side are channels side by side. B batch, S sequence, D channels.
"""

from __future__ import annotations

from typing import Any

from seqmix_ir.graph import Op
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.linear_scan import next_state
from seqmix_tvm.place import COMPUTED, present

__all__ = ["linear_scan"]


def linear_scan(kernel: Kernel, op: Op) -> None:
    """``linear_scan``: the state of a channel is in a register."""
    a, x, initial = map(present, op.operands)
    h, last = op.results
    B, S, D = a.type.shape
    dtype, writer, frame, zero = COMPUTED[a.type.dtype], kernel.writer, kernel.frame, tvm.integer(0)

    def channel(counters: tuple[Any, ...]) -> None:
        b, d = counters
        state, at = writer.local(dtype, 1), frame.index(initial.type.shape, (b, d))
        writer.store(state, zero, tvm.cast(dtype, frame.at(initial, at)))
        with writer.loop(kernel.sizes(S), name="t") as t:
            index = frame.index(a.type.shape, (b, t, d))
            new = next_state(op, frame.at(a, index), frame.at(x, index), state[zero])
            new = writer.bind(new, "h")
            writer.store(state, zero, new)
            frame.save(h, index, new)
        element = writer.bind(state[zero], "last")
        frame.save(last, at, tvm.cast(COMPUTED[last.type.dtype], element))

    kernel.rows((B, D), channel, 1, S)
