"""The kernel of ``scatter_elements``."""

from __future__ import annotations

from typing import Any

from seqmix_ir.graph import Op
from seqmix_ir.ops.rules import normal_axis
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import Index
from seqmix_tvm.rules.layout import within

__all__ = ["scatter_elements"]


def scatter_elements(kernel: Kernel, op: Op) -> None:
    """A copy of the data, then the updates in order; several may name one place."""
    data, indices, updates = op.values
    (y,) = op.results
    has = op.defn.attributes()
    axis = normal_axis(has["axis"], data.type.rank)
    held = kernel.held(y)
    frame, shape = kernel.frame, indices.type.shape
    free = [a for a in range(len(shape)) if a not in held]

    def copy(index: Index) -> None:
        frame.save(y, index, frame.at(data, index))

    def put(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(free, counters, strict=True))}
        index = frame.index(shape, tuple(at[a] for a in range(len(shape))))
        place = within(frame, frame.at(indices, index), data, axis)
        there = frame.index(data.type.shape, (*index.axes[:axis], place, *index.axes[axis + 1 :]))
        element = frame.at(updates, index)
        if has["reduction"] != "none":
            before = kernel.writer.bind(frame.places[y].load(there), "before")
            combined = before + element if has["reduction"] == "add" else f.larger(before, element)
            element = kernel.writer.bind(tvm.cast(tvm.dtype_of(before), combined))
        frame.save(y, there, element)

    kernel.spread(data.type.shape, copy, held)
    kernel.apart_along(shape, free, axis, put)
