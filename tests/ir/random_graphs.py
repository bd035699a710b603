"""Hypothesis strategies: sizes with their meaning in integers, and small valid modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import (
    Size,
    ceildiv,
    dim,
    floordiv,
    isqrt,
    maximum_size,
    minimum_size,
    symbols_of,
)
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import DTYPES, FLOATS, Loc, TensorType

__all__ = ["BINDINGS", "NAMES", "Expression", "bindings", "expressions", "modules", "polynomials"]

NAMES = ("B", "S", "P")
BINDINGS = (0, 1, 2, 3, 5, 63, 64, 65)
Meaning: TypeAlias = "Callable[[Mapping[str, int]], int]"


@dataclass(frozen=True)
class Expression:
    """A size, and what plain integers say that it is."""

    size: Size
    value: Meaning

    def __repr__(self) -> str:
        return str(self.size)


def bindings() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({name: st.sampled_from(BINDINGS) for name in NAMES})


def expressions() -> st.SearchStrategy[Expression]:
    """Sums, products, quotients, roots and extrema of names and numbers."""
    return st.recursive(_leaves(), lambda inner: _polynomial(inner) | _opaque(inner), max_leaves=6)


def polynomials() -> st.SearchStrategy[Expression]:
    """Sums and products only."""
    return st.recursive(_leaves(), _polynomial, max_leaves=6)


def _leaves() -> st.SearchStrategy[Expression]:
    numbers = st.integers(-9, 9).map(lambda n: Expression(n, lambda _: n))
    names = st.sampled_from(NAMES).map(lambda n: Expression(dim(n), lambda b: b[n]))
    return numbers | names


def _polynomial(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda t: Expression(t[0].size + t[1].size, _both(t, lambda x, y: x + y))),
        two.map(lambda t: Expression(t[0].size - t[1].size, _both(t, lambda x, y: x - y))),
        two.map(lambda t: Expression(t[0].size * t[1].size, _both(t, lambda x, y: x * y))),
    )


def _opaque(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    two = st.tuples(inner, inner)
    by = st.integers(1, 7).map(lambda n: Expression(n, lambda _: n)) | st.sampled_from(NAMES).map(
        lambda n: Expression(dim(n) + 1, lambda b: b[n] + 1)
    )
    divided = st.tuples(inner, by)
    return st.one_of(
        two.map(lambda t: Expression(minimum_size(t[0].size, t[1].size), _both(t, min))),
        two.map(lambda t: Expression(maximum_size(t[0].size, t[1].size), _both(t, max))),
        divided.map(lambda t: Expression(floordiv(t[0].size, t[1].size), _both(t, _floor))),
        divided.map(lambda t: Expression(ceildiv(t[0].size, t[1].size), _both(t, _ceil))),
        inner.map(lambda e: Expression(isqrt(maximum_size(e.size, 0)), _root(e))),
    )


def _both(pair: tuple[Expression, Expression], join: Callable[[int, int], int]) -> Meaning:
    return lambda b: join(pair[0].value(b), pair[1].value(b))


def _root(e: Expression) -> Meaning:
    return lambda b: math.isqrt(max(e.value(b), 0))


def _floor(x: int, y: int) -> int:
    return x // y


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


_HINTS = st.sampled_from(["", "x", "y.1", "hidden state", "3", "none", "return"])
_LOCS = st.builds(lambda a, b: Loc(a).inside(b), st.text(max_size=4), st.text(max_size=4))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A valid module of one graph over ``f32``, with attributes of every kind and some scans."""
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    params = [Value(TensorType("f32", draw(_shapes())), name) for name in names]
    b = Builder()
    values = list(params)
    for _ in range(draw(st.integers(1, 8))):
        b.loc = draw(_LOCS)
        values.extend(draw(_application(b, values)))
    results = [*draw(st.lists(st.sampled_from(values), max_size=2)), values[-1]]
    # One more input binds every name.
    bound = Value(TensorType("bool", tuple(map(dim, NAMES))), "all sizes")
    block = b.block([bound, *params], results)
    outputs = tuple(f"out {i}" if i % 2 else f"out.{i}" for i in range(len(results)))
    dims = tuple(
        DimInfo(
            n, draw(st.integers(0, 3)), draw(st.none() | st.integers(3, 9)), draw(st.integers(1, 4))
        )
        for n in NAMES
    )
    return Module(draw(st.text(max_size=4)), (Graph("main", block, outputs, dims),))


def _shapes() -> st.SearchStrategy[tuple[Size, ...]]:
    axis = st.sampled_from([1, 3, dim("B"), dim("S"), dim("P") + 2 * dim("S")])
    return st.lists(axis, max_size=3).map(tuple)


@st.composite
def _application(draw: st.DrawFn, b: Builder, values: list[Value]) -> tuple[Value, ...]:
    x = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(["made", "unary", "shape", "binary", "scan", "norm"]))
    if kind == "made":
        return (b(draw(_made()), hint=draw(_HINTS)),)
    if kind == "scan" and x.type.rank:
        return _scan(b, x, draw(st.integers(0, x.type.rank - 1)), draw(st.booleans()))
    if kind == "norm" and x.type.rank and x.type.dtype == "f32":
        return (b(ops.RmsNorm(draw(st.floats(0, 1))), x, None),)
    if kind == "shape":
        return (b(draw(_reshaping(x.type)), x, hint=draw(_HINTS)),)
    if kind == "binary" and x.type.dtype == "f32":
        zero = b(ops.Constant(draw(st.sampled_from([0.0, 1.0, -0.0, 2.5])), "f32"))
        operands = draw(st.permutations([x, zero]))
        return (b(draw(st.sampled_from([ops.Add(), ops.Mul(), ops.Sub()])), *operands),)
    defns: list[OpDef] = [ops.Cast(draw(st.sampled_from(DTYPES)))]
    if x.type.dtype in FLOATS:
        defns += [ops.Neg(), ops.Tanh(), ops.ClipGradient(2.0)]
    return (b(draw(st.sampled_from(defns)), x, hint=draw(_HINTS)),)


def _made() -> st.SearchStrategy[OpDef]:
    floats = st.floats(width=32)
    sizes = expressions().map(lambda e: e.size)
    positive = sizes.filter(lambda s: bool(symbols_of(s)))
    return st.one_of(
        st.builds(lambda v: ops.Constant(v, "f32"), floats),
        st.builds(lambda v: ops.Constant(tuple(v), "f64"), st.lists(st.floats(), max_size=3)),
        st.builds(lambda v: ops.Constant((v, v), "bool"), st.booleans()),
        st.builds(lambda v: ops.Constant(v, "i64"), st.integers(-(2**63), 2**63 - 1)),
        st.builds(ops.SizeOf, sizes),
        st.builds(ops.Iota, positive, st.sampled_from(["i64", "f32", "u8"])),
        st.builds(
            ops.Weight,
            st.text(min_size=1, max_size=5),
            st.builds(TensorType, st.sampled_from(DTYPES), _shapes()),
        ),
    )


def _reshaping(type: TensorType) -> st.SearchStrategy[OpDef]:
    options: list[Any] = [
        st.permutations(range(type.rank)).map(lambda p: ops.Transpose(tuple(p))),
        st.sampled_from([ops.Unsqueeze((0,)), ops.Unsqueeze((-1,))]),
        st.just(ops.Expand((2, *type.shape))),
        st.just(ops.Reshape((1, *type.shape))),
    ]
    if type.rank:
        options.append(st.just(ops.Slice(-1, 0, type.shape[-1])))
        options.append(st.just(ops.Concat(-1)))
    return st.one_of(options)


def _scan(b: Builder, x: Value, axis: int, reverse: bool) -> tuple[Value, ...]:
    slice_ = x.type.with_shape((*x.type.shape[:axis], *x.type.shape[axis + 1 :]))

    def cell(inner: Builder, h: Value, s: Value, c: Value) -> tuple[Value, ...]:
        kept = inner(ops.Maximum(), h, s) if s.type.dtype != "bool" else inner(ops.And(), h, s)
        return kept, s, inner(ops.Cast("f32"), c)

    start = b(ops.Squeeze((axis,)), b(ops.Slice(axis, 0, 1), x)) if _certain(x, axis) else None
    if start is None:
        body = trace_block([slice_], lambda inner, s: inner(ops.Cast("f32"), s), "s")
        return b.emit(ops.Scan(0, 1, axis, reverse), x, body=body)
    body = trace_block([slice_, slice_, start.type], cell, "h x c")
    return b.emit(ops.Scan(1, 1, axis, reverse), start, x, start, body=body)


def _certain(x: Value, axis: int) -> bool:
    """Whether the axis surely has an element."""
    size = x.type.shape[axis]
    return isinstance(size, int) and size > 0
