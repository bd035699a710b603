"""Products with a weight on a GPU: tiles where there are many rows, else a warp per output.

M rows, N columns, K terms. The weight lies as the model has it, ``[N, K]``: the lanes of a warp
read side by side, and few rows read it from memory once.
"""

from __future__ import annotations

from typing import Any, cast

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import BlockKernel, CudaKernel
from seqmix_tvm.cuda.products import At, Product
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.reduction import accumulated
from seqmix_tvm.place import COMPUTED, present
from seqmix_tvm.quantise import stored_weight

__all__ = ["linear"]


def linear(kernel: Kernel, op: Op) -> None:
    """``linear`` with bias, and the scales of a weight in int8."""
    made = _Linear(cast("CudaKernel", kernel), op)
    made.product.choose(made.few)


class _Linear:
    def __init__(self, kernel: CudaKernel, op: Op) -> None:
        self.kernel, self.frame = kernel, kernel.frame
        self.x, self.y, self.bias = present(op.operands[0]), op.results[0], op.operands[2]
        weight, self.scale = stored_weight(op.operands[1], kernel.frame.producer)
        self.weight, self.dtype = present(weight), accumulated(op, self.x)
        self.lead, (self.N, self.K) = self.x.type.shape[:-1], self.weight.type.shape
        M: Size = 1
        for size in self.lead:
            M = M * size
        self.product = Product(
            kernel, self.dtype, (), M, self.N, self.K, self._term, self._factor,
            lambda _, m, n, total: self._finish(self._row(m), n, total), terms_first=True,
        )  # fmt: skip

    def few(self) -> None:
        """A warp per output takes all rows, or in the body of a scan, a warp per output and row."""
        held = self.kernel.held(self.x)
        free = [axis for axis in range(len(self.lead)) if axis not in held]
        outer = free if isinstance(self.kernel, BlockKernel) else []
        inner = [axis for axis in free if axis not in outer]

        def column(counters: tuple[Any, ...]) -> None:
            *around, n = counters

            def row(counters: tuple[Any, ...]) -> None:
                at = {**held, **dict(zip((*outer, *inner), (*around, *counters), strict=True))}
                axes = tuple(at[axis] for axis in range(len(self.lead)))
                m = self.kernel.writer.bind(self.frame.index(self.lead, axes).flat, "m")
                total = self.product.total((), m, n)
                self.kernel.once(lambda: self._finish(axes, n, total))

            self.kernel.writer.nest([self.kernel.sizes(self.lead[a]) for a in inner], row)

        self.kernel.team_rows((*(self.lead[a] for a in outer), self.N), column, 1, self.K)

    def _row(self, m: Any) -> At:
        return self.frame.index(self.lead, flat=m).axes

    def _term(self, _: At, m: Any, k: Any) -> Any:
        index = self.frame.index(self.x.type.shape, (*self._row(m), k))
        return self.frame.at(self.x, index)

    def _factor(self, _: At, k: Any, n: Any) -> Any:
        return self.frame.at(self.weight, self.frame.index(self.weight.type.shape, (n, k)))

    def _finish(self, row: At, n: Any, total: Any) -> None:
        """One sum, finished."""
        total = total if self.scale is None else total * self._channel(self.scale, n)
        total = total if self.bias is None else total + self._channel(self.bias, n)
        index = self.frame.index(self.y.type.shape, (*row, n))
        self.kernel.sink(index, tvm.cast(COMPUTED[self.y.type.dtype], total))

    def _channel(self, value: Value, n: Any) -> Any:
        """What a value holds for an output."""
        found = self.frame.at(value, self.frame.index(value.type.shape, (n,)))
        return tvm.cast(self.dtype, found)
