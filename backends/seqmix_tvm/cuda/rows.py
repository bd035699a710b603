"""Rows of which a warp finds the largest element."""

from __future__ import annotations

from typing import Any, cast

from seqmix_ir.graph import Op
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.types import FLOATS
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import CudaKernel
from seqmix_tvm.cuda.writer import LANES
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED

__all__ = ["argmax"]

_SHUFFLED = ("float32", "float64", "int32", "int64")


def argmax(kernel: Kernel, op: Op) -> None:
    """``argmax``: each lane finds the best of its elements, then the warp that of its lanes."""
    made = cast("CudaKernel", kernel)
    (x,), (y,) = op.values, op.results
    has, shape, held = op.defn.attributes(), x.type.shape, kernel.held(x)
    axis = normal_axis(has["axis"], x.type.rank)
    loops = [a for a in range(len(shape)) if a != axis and a not in held]

    def row(counters: tuple[Any, ...]) -> None:
        at = {**held, **dict(zip(loops, counters, strict=True))}

        def element(j: Any) -> Any:
            full = {**at, axis: j}
            index = kernel.frame.index(shape, tuple(full[a] for a in range(len(shape))))
            return kernel.frame.at(x, index)

        search = _Search(made, COMPUTED[x.type.dtype], x.type.dtype in FLOATS)
        place = search.best(kernel.sizes(shape[axis]), element)
        here = [
            at.get(a, tvm.integer(0)) for a in range(len(shape)) if has["keepdims"] or a != axis
        ]
        index = kernel.frame.index(y.type.shape, tuple(here))
        kernel.once(lambda: kernel.sink(index, place))

    kernel.team_rows(tuple(shape[a] for a in loops), row, 1, shape[axis])


class _Search:
    """The best element that a lane knows of, and where it is."""

    def __init__(self, kernel: CudaKernel, dtype: str, floats: bool) -> None:
        self.kernel, self.writer, self.floats = kernel, kernel.threads, floats
        self.dtype = dtype if dtype in _SHUFFLED else "int32"
        self.value, self.place = (self.writer.local(d, 1) for d in (self.dtype, "int64"))

    def best(self, length: Any, element: Any) -> Any:
        """The place of the first of the largest elements, of the first NaN if there is one."""
        writer, zero = self.writer, tvm.integer(0)
        first = writer.bind(tvm.minimum(self.writer.threads.lane, length - tvm.integer(1)), "j")
        self._keep(tvm.cast(self.dtype, element(first)), first)
        with self.kernel.along(length) as j:
            self._take(tvm.cast(self.dtype, element(j)), j)
        lanes = LANES // 2
        while lanes:
            value = writer.hide(tvm.shuffled(writer.bind(self.value[zero], "value"), lanes))
            place = writer.hide(tvm.shuffled(writer.bind(self.place[zero], "place"), lanes))
            self._take(value, place)
            lanes //= 2
        return writer.bind(self.place[zero], "place")

    def _keep(self, value: Any, place: Any) -> None:
        self.writer.store(self.value, tvm.integer(0), value)
        self.writer.store(self.place, tvm.integer(0), place)

    def _take(self, value: Any, place: Any) -> None:
        """Keep an element if it is better than the one that is known."""
        zero, bind = tvm.integer(0), self.writer.bind
        value, known = self.writer.hide(value), self.writer.hide(self.value[zero])
        before = bind(place < self.place[zero], "before")
        same = tvm.both(value >= known, value <= known)
        wins = tvm.either(value > known, tvm.both(same, before))
        if self.floats:
            new, old = f.is_nan(value), f.is_nan(known)
            wins = tvm.both(wins, tvm.negated(old))
            wins = tvm.either(wins, tvm.both(new, tvm.either(tvm.negated(old), before)))
        wins = bind(wins, "wins")
        self._keep(tvm.select(wins, value, known), tvm.select(wins, place, self.place[zero]))
