"""What the tests of the derived adjoint share: running both graphs, and differences as judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqmix_ir import show
from seqmix_ir.adjoint import Adjoint, adjoint
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.ops import Scan
from seqmix_ir.types import FLOATS, TensorType
from seqmix_ir.verifier import verify

__all__ = ["Loop", "check_gradients", "gradients"]


@dataclass
class Loop:
    """A scan as an op, with arrays for its operands."""

    op: Op
    arrays: Sequence[Array]

    def __repr__(self) -> str:
        return show(self.module())

    @classmethod
    def of(
        cls,
        scan: Scan,
        types: Sequence[TensorType],
        body: Block,
        arrays: Sequence[Array],
    ) -> Loop:
        """Emit the scan on operands of these types."""
        b = Builder()
        b.emit(scan, *(Value(t, f"x{i}") for i, t in enumerate(types)), body=body)
        return cls(b.ops[0], arrays)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The results of the scan itself, by its definition."""
        given = {f"x{i}": a for i, a in enumerate(arrays)}
        return list(Interpreter(self.module(), {}).run("main", given).values())

    def module(self) -> Module:
        """A module of one graph ``main``, which is the scan."""
        names = tuple(f"y{i}" for i in range(len(self.op.results)))
        block = Block(self.op.values, (self.op,), self.op.results)
        return Module("scan", (Graph("main", block, names),))


def gradients(
    loop: Loop, weigh: Sequence[Array | None], wrt: Sequence[int] | None = None
) -> tuple[Adjoint, dict[int, Array]]:
    """Cotangents by operand, of the sum of the results times ``weigh``; the graphs are verified."""
    derived = adjoint(loop.op, wrt)
    verify(derived.module)
    interpreter = Interpreter(derived.module, {})
    operands = {f"x{i}": a for i, a in enumerate(loop.arrays)}
    after = interpreter.run("forward", operands)
    for i, y in enumerate(loop.run(loop.arrays)):
        np.testing.assert_allclose(after[f"y{i}"], y, rtol=1e-11, atol=1e-12)
    given = {n: operands[n] for n in derived.backward.inputs if n in operands}
    saved = {n: a for n, a in after.items() if n.startswith("s")}
    for i in derived.cotangents:
        w = weigh[i]
        given[f"dy{i}"] = np.zeros_like(after[f"y{i}"]) if w is None else w
    back = interpreter.run("backward", {**given, **saved})
    return derived, {i: back[f"dx{i}"] for i in derived.wrt}


def check_gradients(loop: Loop, step: float = 1e-6, tolerance: float = 2e-7) -> Adjoint:
    """Each gradient against a central difference along a random direction of its operand."""
    rng = np.random.default_rng(7)
    weigh = [
        rng.standard_normal(y.shape) if y.dtype.kind == "f" else None for y in loop.run(loop.arrays)
    ]
    derived, found = gradients(loop, weigh)
    for i, grad in found.items():
        assert grad.shape == loop.arrays[i].shape
        along = rng.standard_normal(grad.shape)
        ends = [_loss(loop, weigh, i, sign * step * along) for sign in (1, -1)]
        wanted = (ends[0] - ends[1]) / (2 * step)
        got = float((grad * along).sum())
        assert abs(got - wanted) <= tolerance * max(1.0, abs(wanted)), (i, got, wanted)
    return derived


def _loss(loop: Loop, weigh: Sequence[Array | None], place: int, change: Array) -> float:
    arrays = [a + change if i == place else a for i, a in enumerate(loop.arrays)]
    results = loop.run(arrays)
    return float(sum((y * w).sum() for y, w in zip(results, weigh, strict=True) if w is not None))


def is_float(type: TensorType | None) -> bool:
    """Whether an operand may have a gradient."""
    return type is not None and type.dtype in FLOATS
