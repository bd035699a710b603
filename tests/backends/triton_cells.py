"""Recurrent cells as scans of the graph IR, and bodies of scans drawn at random.

B batch, S sequence, H heads, D width of a head, K key size, V value size.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.dims import dim, evaluate_size
from seqmix_ir.graph import DimInfo, Graph, Module, Op, Value
from seqmix_ir.types import DType, TensorType

__all__ = ["CELLS", "Cell", "drawn_cell", "operands", "scan_module", "scan_op"]

B, S = dim("B"), dim("S")


@dataclass(frozen=True)
class Cell:
    """A body: the types of carries, slices and constants, and how it is written."""

    types: tuple[TensorType, ...]
    carries: int
    sequences: int
    write: Callable[..., tuple[Value, ...]] = field(repr=False)
    names: str


def scan_op(cell: Cell, reverse: bool = False, axis: int = 1) -> Op:
    """A scan of the cell along ``axis``."""
    types = list(cell.types)
    for i in range(cell.carries, cell.carries + cell.sequences):
        shape = types[i].shape
        types[i] = types[i].with_shape((*shape[:axis], S, *shape[axis:]))
    b = Builder()
    body = trace_block(cell.types, cell.write, cell.names)
    defn = ops.Scan(cell.carries, cell.sequences, axis, reverse)
    b.emit(defn, *(Value(t, f"x{i}") for i, t in enumerate(types)), body=body)
    return b.ops[0]


def scan_module(op: Op) -> Module:
    """A graph of the scan alone."""
    outputs = tuple(f"y{i}" for i in range(len(op.results)))
    sizes = Value(TensorType("bool", (B, S)), "sizes")
    block = Builder().block([*op.values, sizes], op.results)
    block = type(block)(block.params, (op,), block.results)
    return Module("loop", (Graph("loop", block, outputs, (DimInfo("B"), DimInfo("S"))),))


def operands(graph: Graph, batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Small numbers for the inputs of a graph."""
    rng, sizes = np.random.default_rng(seed), {"B": batch, "S": length}
    found = {}
    for name, value in graph.inputs.items():
        shape = [evaluate_size(n, sizes) for n in value.type.shape]
        array = torch.from_numpy(0.5 * rng.standard_normal(shape))
        found[name] = array.to(torch_dtype(value.type.dtype))
    return found


def _rows(*shape: int, dtype: DType = "f32") -> TensorType:
    return TensorType(dtype, (B, *shape))


def _lstm(D: int, dtype: DType = "f32") -> Cell:
    def write(b: Builder, h: Value, c: Value, x: Value, w: Value) -> tuple[Value, ...]:
        gates = b(ops.Add(), x, b(ops.Matmul(), h, w))
        i, f, z, o = (b(ops.Slice(1, k * D, (k + 1) * D), gates) for k in range(4))
        kept = b(ops.Mul(), b(ops.Sigmoid(), f), c)
        c = b(ops.Add(), kept, b(ops.Mul(), b(ops.Sigmoid(), i), b(ops.Tanh(), z)))
        h = b(ops.Mul(), b(ops.Sigmoid(), o), b(ops.Tanh(), c))
        return h, c, h

    types = (_rows(D, dtype=dtype), _rows(D, dtype=dtype), _rows(4 * D, dtype=dtype))
    return Cell((*types, TensorType(dtype, (D, 4 * D))), 2, 1, write, "h c x w")


def _gru(D: int) -> Cell:
    def write(b: Builder, h: Value, x: Value, w: Value, bias: Value) -> tuple[Value, ...]:
        u = b(ops.Linear(), h, w, bias)

        def part(v: Value, k: int) -> Value:
            return b(ops.Slice(1, k * D, (k + 1) * D), v)

        r, z = (b(ops.Sigmoid(), b(ops.Add(), part(x, k), part(u, k))) for k in (0, 1))
        n = b(ops.Tanh(), b(ops.Add(), part(x, 2), b(ops.Mul(), r, part(u, 2))))
        h = b(ops.Add(), n, b(ops.Mul(), z, b(ops.Sub(), h, n)))
        return h, h

    types = (_rows(D), _rows(3 * D), TensorType("f32", (3 * D, D)), TensorType("f32", (3 * D,)))
    return Cell(types, 1, 1, write, "h x w bias")


def _heads(H: int, D: int) -> Cell:
    """Exponential gates with a stabiliser, a matrix per head; what it computed is stacked."""

    def write(b: Builder, h: Value, c: Value, m: Value, x: Value, w: Value) -> tuple[Value, ...]:
        mixed = b(ops.Matmul(), b(ops.Unsqueeze((2,)), h), w)
        gates = b(ops.Add(), x, b(ops.Reshape((B, H, 4, D)), mixed))
        i, f, z, o = (b(ops.Squeeze((2,)), b(ops.Slice(2, k, k + 1), gates)) for k in range(4))
        f = b(ops.Add(), b(ops.Neg(), b(ops.Softplus(), b(ops.Neg(), f))), m)
        m = b(ops.Maximum(), i, f)
        i, f = (b(ops.Exp(), b(ops.Sub(), gate, m)) for gate in (i, f))
        c = b(ops.Add(), b(ops.Mul(), f, c), b(ops.Mul(), i, b(ops.Tanh(), z)))
        h = b(ops.Mul(), b(ops.Sigmoid(), o), b(ops.Tanh(), c))
        return h, c, m, b(ops.Concat(2), *(b(ops.Unsqueeze((2,)), v) for v in (i, f, c, h)))

    types = (*[_rows(H, D)] * 3, _rows(H, 4, D), TensorType("f32", (H, D, 4 * D)))
    return Cell(types, 3, 1, write, "h c m x w")


def _matrix(H: int, K: int, V: int) -> Cell:
    """A matrix memory with its normalizer."""

    def write(
        b: Builder, memory: Value, n: Value, q: Value, k: Value, v: Value, f: Value
    ) -> tuple[Value, ...]:
        gate = b(ops.Unsqueeze((2,)), b(ops.Sigmoid(), f))
        outer = b(ops.Mul(), b(ops.Unsqueeze((3,)), k), b(ops.Unsqueeze((2,)), v))
        memory = b(ops.Add(), b(ops.Mul(), b(ops.Unsqueeze((3,)), gate), memory), outer)
        n = b(ops.Add(), b(ops.Mul(), gate, n), k)
        y = b(ops.Squeeze((2,)), b(ops.Matmul(), b(ops.Unsqueeze((2,)), q), memory))
        scale = b(ops.Abs(), b(ops.Reduce("sum", (-1,), True), b(ops.Mul(), q, n)))
        one = ops.constant(b, 1.0, "f32")
        return memory, n, b(ops.Div(), y, b(ops.Maximum(), scale, one))

    types = (_rows(H, K, V), _rows(H, K), _rows(H, K), _rows(H, K), _rows(H, V), _rows(H))
    return Cell(types, 2, 4, write, "memory n q k v f")


def _elementwise(D: int) -> Cell:
    def write(b: Builder, h: Value, z: Value, x: Value) -> tuple[Value, ...]:
        h = b(ops.Add(), h, b(ops.Mul(), b(ops.Sigmoid(), z), b(ops.Sub(), x, h)))
        return h, h

    return Cell((_rows(D),) * 3, 1, 2, write, "h z x")


def _normed(D: int, N: int) -> Cell:
    """A product of what is put together, and a norm over it."""

    def write(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
        y = b(ops.Matmul(), b(ops.Concat(1), x, h), w)
        return b(ops.Tanh(), b(ops.LayerNorm(1e-3), y, None, None)), y

    return Cell((_rows(D), _rows(N), TensorType("f32", (D + N, D))), 1, 1, write, "h x w")


CELLS = {
    "lstm": _lstm(16),
    "lstm of odd width": _lstm(5),
    "lstm f64": _lstm(5, "f64"),
    "lstm bf16": _lstm(16, "bf16"),
    "gru": _gru(7),
    "heads": _heads(3, 16),
    "matrix": _matrix(2, 4, 6),
    "elementwise": _elementwise(20),
    "normed": _normed(6, 3),
}


def drawn_cell(seed: int) -> Cell:
    """A body of a dozen ops: curves, pairs, products, norms, parts of wide rows."""
    choice = random.Random(seed)
    D, heads = choice.choice((3, 5, 16)), choice.random() < 0.5
    lead = (2,) if heads else ()
    count = choice.choice((1, 2, 3))
    matrix = TensorType("f32", (*lead, D, D))
    types = (
        *[_rows(*lead, D)] * count, _rows(*lead, D), _rows(*lead, 2 * D),
        matrix, TensorType("f32", (*lead, 2 * D, D)), TensorType("f32", (D,)),
    )  # fmt: skip
    names = " ".join([*(f"h{i}" for i in range(count)), "x", "wide", "u", "v", "bias"])

    def write(b: Builder, *params: Value) -> tuple[Value, ...]:
        return _Drawing(b, choice, params, count, lead).run()

    return Cell(types, count, 2, write, names)


class _Drawing:
    def __init__(
        self,
        b: Builder,
        choice: random.Random,
        params: tuple[Value, ...],
        count: int,
        lead: tuple[int, ...],
    ) -> None:
        self.b, self.choice, self.count, self.lead = b, choice, count, lead
        self.pool = [*params[:count], params[count]]
        self.wide, self.square, self.tall, self.bias = params[count + 1 :]
        self.row = self.pool[0].type

    def run(self) -> tuple[Value, ...]:
        kinds = [self.curve, self.pair, self.pair, self.product, self.normed, self.part, self.both]
        for _ in range(10):
            self.pool.append(self.choice.choice(kinds)())
        carries = [self.b(ops.Tanh(), self.late()) for _ in range(self.count)]
        axis = self.row.rank - 1
        stacked = self.b(ops.Concat(axis), self.late(), carries[0])
        return (*carries, carries[-1], stacked)

    def late(self) -> Value:
        return self.pool[-1 - min(int(self.choice.expovariate(0.7)), len(self.pool) - 1)]

    def curve(self) -> Value:
        kinds = (ops.Tanh(), ops.Sigmoid(), ops.Silu(), ops.Neg(), ops.Relu(), ops.Abs())
        return self.b(self.choice.choice(kinds), self.late())

    def pair(self) -> Value:
        kinds = (ops.Add(), ops.Sub(), ops.Mul(), ops.Maximum())
        other = self.bias if self.choice.random() < 0.2 else self.choice.choice(self.pool)
        return self.b(self.choice.choice(kinds), self.late(), other)

    def multiplied(self, x: Value, matrix: Value) -> Value:
        if not self.lead:
            return self.b(ops.Tanh(), self.b(ops.Matmul(), x, matrix))
        y = self.b(ops.Matmul(), self.b(ops.Unsqueeze((2,)), x), matrix)
        return self.b(ops.Tanh(), self.b(ops.Squeeze((2,)), y))

    def product(self) -> Value:
        return self.multiplied(self.late(), self.square)

    def both(self) -> Value:
        axis = self.row.rank - 1
        both = self.b(ops.Concat(axis), self.late(), self.choice.choice(self.pool))
        return self.multiplied(both, self.tall)

    def normed(self) -> Value:
        x, kind = self.late(), self.choice.randrange(3)
        if kind == 0:
            return self.b(ops.Softmax(-1), x)
        if kind == 1:
            return self.b(ops.RmsNorm(1e-1), x, None)
        high = self.b(ops.Reduce("max", (-1,), True), x)
        return self.b(ops.Sub(), x, high)

    def part(self) -> Value:
        D, axis = self.row.shape[-1], self.row.rank - 1
        start = self.choice.choice((0, D))
        return self.b(ops.Slice(axis, start, start + D), self.wide)
