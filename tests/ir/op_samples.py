"""One or more applications of every core op, with symbolic sizes and inputs to run them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array, Example, OpDef
from seqmix_ir.dims import dim, evaluate_size, floordiv
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.types import FLOATS, DType, TensorType

B, S, P = dim("B"), dim("S"), dim("P")
SIZES = ({"B": 2, "S": 5, "P": 3}, {"B": 1, "S": 1, "P": 0}, {"B": 3, "S": 2, "P": 1})
_ALL = TensorType("bool", (B, S, P))
DIMS = (DimInfo("B"), DimInfo("S"), DimInfo("P", min=0))
Fill: TypeAlias = "Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]"


def f32(*shape: Any) -> TensorType:
    return TensorType("f32", shape)


def i64(*shape: Any) -> TensorType:
    return TensorType("i64", shape)


def boolean(*shape: Any) -> TensorType:
    return TensorType("bool", shape)


def below(limit: int, low: int = 0) -> Fill:
    return lambda rng, shape: rng.integers(low, limit, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.abs(rng.standard_normal(shape)) + 0.25


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Along the last axis no index is named twice; the indexed axis is at least as long."""
    return np.broadcast_to(np.arange(shape[-1])[::-1], shape).copy()


@dataclass(frozen=True)
class Sample:
    """One application: attributes, operand types, how to fill some operands, a region."""

    defn: OpDef
    types: tuple[TensorType | None, ...] = ()
    fills: Mapping[int, Fill] = field(default_factory=dict)
    body: Block | None = None

    def __str__(self) -> str:
        return f"{self.defn.name}({', '.join(map(str, self.types))})"

    def with_floats(self, dtype: DType) -> Sample:
        """The same with every f32 operand in another dtype."""
        types = tuple(
            t if t is None or t.dtype != "f32" else t.with_dtype(dtype) for t in self.types
        )
        return dataclasses.replace(self, types=types)

    def module(self, style: str = "") -> Module:
        """A module whose graph ``main`` is the op, or its decomposition called ``style``."""
        params = tuple(None if t is None else Value(t, f"x{i}") for i, t in enumerate(self.types))
        b = Builder()
        results = b.emit(self.defn, *params, body=self.body)
        if style:
            (op,) = b.ops
            b = b.inside(style)
            results = self.defn.decompositions()[style](b, op)
        # One more input binds every name, also where no operand mentions it.
        named = [Value(_ALL, "sizes"), *(p for p in params if p is not None)]
        return graph_module(b, named, results)

    def op(self) -> Op:
        (op,) = self.module().graph("main").block.ops
        return op

    def inputs(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
        """Arrays for the graph ``main``."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {"sizes": np.zeros([sizes[str(s)] for s in (B, S, P)], np.bool_)}
        for i, type in enumerate(self.types):
            if type is not None:
                shape = tuple(evaluate_size(s, sizes) for s in type.shape)
                fill = self.fills.get(i, _default_fill(type.dtype))
                made[f"x{i}"] = np.asarray(fill(rng, shape)).astype(NUMPY_DTYPES[type.dtype])
        return made


def graph_module(
    b: Builder, params: list[Value], results: tuple[Value, ...], dims: tuple[DimInfo, ...] = DIMS
) -> Module:
    """A module of one graph ``main`` with outputs ``y0``, ``y1`` and so on."""
    names = tuple(f"y{i}" for i in range(len(results)))
    return Module("sample", (Graph("main", b.block(params, results), names, dims),))


def _default_fill(dtype: DType) -> Fill:
    if dtype in FLOATS:
        return lambda rng, shape: rng.standard_normal(shape)
    if dtype == "bool":
        return lambda rng, shape: rng.random(shape) < 0.5
    return below(5, -4)


def lstm_like(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
    """``h' = tanh(h + x) * w``; the output is ``-h'``."""
    new = b(ops.Mul(), b(ops.Tanh(), b(ops.Add(), h, x)), w)
    return new, b(ops.Neg(), new)


def _scan_body(dtype: DType = "f32") -> Block:
    types = (f32(B, 3), f32(B, 3), f32(3))
    return trace_block([t.with_dtype(dtype) for t in types], lstm_like, "h x w")


def _positions(start: int) -> Fill:
    """-1 now and then, else counting up from ``start``."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        counted = np.broadcast_to(np.arange(shape[1]) + start, shape)
        return np.where(rng.random(shape) < 0.2, -1, counted)

    return fill


def _unary() -> Iterator[Sample]:
    for domain in (ops.Log(), ops.Sqrt(), ops.Reciprocal()):
        yield Sample(domain, (f32(B, S, 3),), {0: positive})
    for cls in (
        ops.Neg,
        ops.Abs,
        ops.Sign,
        ops.Exp,
        ops.Sin,
        ops.Cos,
        ops.Tanh,
        ops.Erf,
        ops.Floor,
        ops.Ceil,
        ops.Round,
        ops.Relu,
        ops.Sigmoid,
        ops.Softplus,
        ops.Silu,
        ops.Gelu,
    ):
        yield Sample(cls(), (f32(B, S, 3),))
        yield Sample(cls(), (f32(),))
    yield Sample(ops.Neg(), (i64(B, S),))
    yield Sample(ops.Gelu("tanh"), (f32(B, S, 3),))
    yield Sample(ops.Not(), (boolean(B, S),))
    yield Sample(ops.ClipGradient(10.0), (f32(B, S),))
    for dtype in ("f64", "f16", "bf16", "i32", "u8", "bool"):
        fills = {0: below(5)} if dtype == "u8" else {}
        yield Sample(ops.Cast(dtype), (f32(B, S),), fills)


def _binary() -> Iterator[Sample]:
    for cls in (
        ops.Add,
        ops.Sub,
        ops.Mul,
        ops.Maximum,
        ops.Minimum,
        ops.Equal,
        ops.NotEqual,
        ops.Less,
        ops.LessEqual,
        ops.Greater,
        ops.GreaterEqual,
    ):
        yield Sample(cls(), (f32(B, 1, S), f32(3, 1)))
        yield Sample(cls(), (i64(S), i64(B, S)))
    for op in (ops.Div(), ops.Pow(), ops.Mod(), ops.FloorDiv()):
        yield Sample(op, (f32(B, 1, S), f32(3, 1)), {0: positive, 1: positive})
    for whole in (ops.Mod(), ops.FloorDiv()):
        yield Sample(whole, (i64(B, S), i64()), {1: below(7, 3)})
    for both in (ops.And(), ops.Or()):
        yield Sample(both, (boolean(B, S), boolean(B, 1)))
    yield Sample(ops.Where(), (boolean(S, 1), f32(B, 1, 3), f32()))


def _made() -> Iterator[Sample]:
    yield Sample(ops.Constant(((1.5, 2.0, -0.25), (0.0, 1e9, 3.0)), "f32"))
    yield Sample(ops.Constant(7, "i64"))
    yield Sample(ops.Constant((), "f32"))
    yield Sample(ops.SizeOf(P + 2 * S))
    yield Sample(ops.Iota(P + S))
    yield Sample(ops.Iota(S, "f32"))


def _shape() -> Iterator[Sample]:
    x = f32(B, S, 6)
    yield Sample(ops.Reshape((B * S, 2, 3)), (x,))
    yield Sample(ops.Reshape((1,)), (f32(),))
    yield Sample(ops.Transpose((2, 0, -2)), (x,))
    yield Sample(ops.Transpose(()), (f32(),))
    yield Sample(ops.Expand((3, B, S, 2)), (f32(B, 1, 2),))
    yield Sample(ops.Unsqueeze((0, -1)), (f32(B, S),))
    yield Sample(ops.Squeeze((0, -1)), (f32(1, S, 1),))
    yield Sample(ops.Concat(-2), (f32(B, P, 2), f32(B, S, 2), f32(B, 1, 2)))
    yield Sample(ops.Slice(1, P, P + S), (f32(B, P + S),))
    yield Sample(ops.Slice(-1, 1, 6, 2), (x,))
    yield Sample(ops.Slice(1, 0, S, 3), (x,))
    yield Sample(ops.Pad(1, P, 2, -1.5), (x,))
    yield Sample(ops.Pad(-1, 0, 1, 1.0), (boolean(B, S),))


def _linear() -> Iterator[Sample]:
    yield Sample(ops.Matmul(), (f32(B, 1, S, 4), f32(3, 4, 2)))
    yield Sample(ops.Matmul("f64"), (f32(S, 4), f32(4, P)))
    for bias in (None, f32(5)):
        yield Sample(ops.Linear(), (f32(B, S, 4), f32(5, 4), bias))
    yield Sample(ops.Linear("f64"), (f32(S, 4), f32(5, 4), f32(5)))


def _reduce() -> Iterator[Sample]:
    x = f32(B, S, 6)
    for kind in ("sum", "max", "min", "mean", "prod"):
        yield Sample(ops.Reduce(kind, (-1, 0), False), (x,))
        yield Sample(ops.Reduce(kind, (1,), True), (x,))
    for kind in ("any", "all"):
        yield Sample(ops.Reduce(kind, (1,), False), (boolean(B, S),))
    yield Sample(ops.Reduce("sum", (0,), True), (TensorType("i32", (S,)),))
    yield Sample(ops.ArgMax(-1, False), (x,))
    yield Sample(ops.ArgMax(1, True), (x,))
    yield Sample(ops.Softmax(1), (x,))
    yield Sample(ops.Softmax(-1, "f64"), (x,))
    for exclusive in (False, True):
        for reverse in (False, True):
            yield Sample(ops.CumSum(1, exclusive, reverse), (x,))
    yield Sample(ops.CumSum(-1), (TensorType("i32", (B, S)),))


def _index() -> Iterator[Sample]:
    yield Sample(ops.Gather(), (f32(7, 3), i64(B, S)), {1: below(7, -7)})
    yield Sample(ops.Gather(-1), (f32(B, 7), i64()), {1: below(7)})
    yield Sample(ops.GatherElements(1), (f32(B, 7), i64(B, S)), {1: below(7, -7)})
    for reduction in ("add", "max"):
        scatter = ops.ScatterElements(-1, reduction)
        yield Sample(scatter, (f32(B, 7), i64(B, S), f32(B, S)), {1: below(7, -7)})
    scatter = ops.ScatterElements(1)
    yield Sample(scatter, (f32(B, P + S), i64(B, S), f32(B, S)), {1: distinct})


def _norm() -> Iterator[Sample]:
    x, d = f32(B, S, 6), f32(6)
    for weight in (None, d):
        yield Sample(ops.RmsNorm(1e-5), (x, weight))
        yield Sample(ops.LayerNorm(1e-5), (x, weight, None))
    yield Sample(ops.LayerNorm(1e-5), (x, d, d))
    yield Sample(ops.RmsNorm(1e-5, "f64"), (x, d))


def _mixers() -> Iterator[Sample]:
    q, k, v = f32(B, 6, S, 4), f32(B, 2, P + S, 4), f32(B, 2, P + S, 3)
    positions = (i64(B, S), i64(B, P + S))
    fills = {3: _positions(2), 4: _positions(0)}
    yield Sample(ops.Attention(), (q, k, v, *positions, None, None), fills)
    for bias in (None, f32(B, 1, S, P + S), f32(6, 1, 1), f32(P + S)):
        for sinks in (None, f32(6)):
            attention = ops.Attention(0.7, True, 3)
            yield Sample(attention, (q, k, v, *positions, bias, sinks), fills)
    own = (f32(B, 2, S, 4), f32(B, 2, P + S, 4), f32(B, 2, P + S, 5))
    yield Sample(ops.Attention(causal=False), (*own, *positions, None, None), fills)
    for interleaved in (False, True):
        for half in (2, 3):
            table = f32(B, S, half)
            yield Sample(ops.Rotary(interleaved), (f32(B, 3, S, 6), table, table))
    x = f32(B, 3, S)
    for taps in (1, 2, 4):
        tail = f32(B, 3, taps - 1)
        for bias in (None, f32(3)):
            for activation in ("", "silu"):
                conv = ops.CausalConv1d(activation)
                yield Sample(conv, (x, f32(3, taps), bias, tail))
    for reverse in (False, True):
        operands = (f32(B, 3), f32(B, S, 3), f32(3))
        yield Sample(ops.Scan(1, 1, 1, reverse), operands, body=_scan_body())


def _conv() -> Iterator[Sample]:
    x = f32(B, 6, S)
    yield Sample(ops.Conv1d(), (x, f32(5, 6, 1), f32(5)))
    yield Sample(ops.Conv1d(groups=3, before=2, after=1), (x, f32(9, 2, 3), None))
    yield Sample(ops.Conv1d(2, 3, 6, 5, 4), (x, f32(6, 1, 4), f32(6)))
    yield Sample(ops.Conv1d(before=3, accumulate="f64"), (x, f32(1, 6, P + 1), None))


def _ordering() -> Iterator[Sample]:
    x = f32(B, S, 6)
    for largest in (True, False):
        yield Sample(ops.TopK(4, -1, largest), (x,))
        yield Sample(ops.TopK(S, 1, largest), (i64(B, S, 3),))
    yield Sample(ops.ArgMin(-1, False), (x,))
    yield Sample(ops.ArgMin(1, True), (i64(B, S),))
    for cls in (ops.CumProd, ops.CumMax, ops.CumMin, ops.LogCumSumExp):
        for exclusive in (False, True):
            for reverse in (False, True):
                yield Sample(cls(1, exclusive, reverse), (x,))
        yield Sample(cls(-1), (f32(B, P),))
    yield Sample(ops.CumMax(0, True), (i64(S, P),))


def _transcendental() -> Iterator[Sample]:
    for cls in (ops.Expm1, ops.Sinh, ops.Cosh, ops.Tan, ops.Atan, ops.Asinh):
        yield Sample(cls(), (f32(B, S, 3),))
    for cls in (ops.Asin, ops.Acos, ops.Atanh, ops.Log1p):
        yield Sample(cls(), (f32(B, S, 3),), {0: lambda rng, shape: rng.uniform(-0.9, 0.9, shape)})
    yield Sample(ops.Acosh(), (f32(B, S),), {0: lambda rng, shape: 1.1 + positive(rng, shape)})


def _sometimes_nothing(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """-inf now and then: the zero of (max, +)."""
    return np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))


def _long_range() -> Iterator[Sample]:
    x = f32(B, S, 3)
    decays = {0: lambda rng, shape: rng.uniform(0.2, 1.0, shape)}
    yield Sample(ops.LinearScan(), (x, x, f32(B, 3)), decays)
    fills = {1: _sometimes_nothing, 2: _sometimes_nothing}
    yield Sample(ops.LinearScan("max_plus"), (x, x, f32(B, 3)), fills)
    for taps, past in ((4, None), (S, P), (P + 2, 3)):
        history = None if past is None else f32(B, 3, past)
        yield Sample(ops.LongConv(), (f32(B, 3, S), f32(3, taps), history))


def _fourier() -> Iterator[Sample]:
    for length in (8, S, 2 * S + 1):
        yield Sample(ops.Rfft(length), (f32(B, 3, S),))
        yield Sample(ops.Irfft(length), (f32(B, floordiv(length, 2) + 1, 2),))


def _shown(sampled: tuple[Sample, ...]) -> Iterator[Sample]:
    """The examples of the core ops that have no sample of symbolic sizes."""
    known = {type(sample.defn) for sample in sampled}
    for cls in ops.CORE_OPS:
        # Those that run on weights are covered by the interpreter's tests.
        if cls not in known and cls is not ops.Weight:
            yield from map(_of_example, cls.examples(np.random.default_rng(0)))


def _of_example(example: Example) -> Sample:
    """An example in float32: its operands fit its own fixed sizes only."""
    dtypes = {array: name for name, array in NUMPY_DTYPES.items()} | {np.dtype("f8"): "f32"}
    present = {i: np.asarray(a) for i, a in enumerate(example.operands) if a is not None}
    types = [TensorType(dtypes[a.dtype], a.shape) for a in present.values()]
    by_place = dict(zip(present, types, strict=True))
    return Sample(
        example.defn,
        tuple(by_place.get(i) for i in range(len(example.operands))),
        {i: _given(array) for i, array in present.items()},
        None if example.body is None else example.body("f32"),
    )


def _given(array: Array) -> Fill:
    return lambda rng, shape: array


_SYMBOLIC: tuple[Sample, ...] = (
    *_unary(),
    *_binary(),
    *_made(),
    *_shape(),
    *_linear(),
    *_reduce(),
    *_index(),
    *_norm(),
    *_mixers(),
    *_conv(),
    *_ordering(),
    *_transcendental(),
    *_long_range(),
    *_fourier(),
)

SAMPLES = (*_SYMBOLIC, *_shown(_SYMBOLIC))
