"""One random op on values at hand, valid at every binding of the symbols; scans among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hypothesis import strategies as st

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Size, dim, symbols_of
from seqmix_ir.graph import Block, Value
from seqmix_ir.types import FLOATS, INTEGERS, TensorType

__all__ = ["Pool", "apply_some_op"]

_SURE = (dim("B"), dim("S"), dim("P") + dim("S"), 2 * dim("S"))
_CALM: tuple[OpDef, ...] = (
    ops.Neg(),
    ops.Abs(),
    ops.Tanh(),
    ops.Sigmoid(),
    ops.Silu(),
    ops.Gelu(),
    ops.Gelu("tanh"),
    ops.Softplus(),
    ops.Relu(),
    ops.Erf(),
    ops.Sin(),
    ops.ClipGradient(3.0),
)
_WILD: tuple[OpDef, ...] = (
    ops.Exp(),
    ops.Log(),
    ops.Sqrt(),
    ops.Reciprocal(),
    ops.Floor(),
    ops.Round(),
    ops.Sign(),
)
_CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan)


@dataclass
class Pool:
    """A block under construction and the values that ops may read."""

    b: Builder
    values: list[Value]
    smooth: bool
    depth: int = 0

    def add(self, *values: Value) -> None:
        """Offer values to later ops; those of smooth programs are kept small."""
        for value in values:
            small = self.smooth and value.type.dtype in FLOATS
            self.values.append(self.b(ops.Tanh(), value) if small else value)


def apply_some_op(draw: st.DrawFn, pool: Pool, without: Collection[str] = ()) -> None:
    """Append one op, and the constants that it needs, and offer its results.

    ``without`` names kinds of ops that are not wanted.
    """
    x = draw(st.sampled_from(pool.values))
    fitting = [k for k, (fits, _) in _KINDS.items() if k not in without and fits(x, pool)]
    _, apply = _KINDS[draw(st.sampled_from(fitting))]
    apply(draw, pool, x)


def _unary(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    if x.type.dtype == "bool":
        pool.add(pool.b(ops.Not(), x))
    elif x.type.dtype in INTEGERS:
        known = [ops.Cast("i64")] if x.type.dtype == "u8" else [ops.Neg(), ops.Abs(), ops.Sign()]
        pool.add(pool.b(draw(st.sampled_from(known)), x))
    else:
        functions = _CALM if pool.smooth else (*_CALM, *_WILD)
        pool.values.append(pool.b(draw(st.sampled_from(functions)), x))


def _binary(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    y = _partner(draw, pool, x)
    operands = draw(st.permutations([x, y]))
    known: list[OpDef] = [ops.Add(), ops.Sub(), ops.Mul(), ops.Maximum(), ops.Minimum()]
    if x.type.dtype == "bool":
        known = [ops.And(), ops.Or(), ops.NotEqual()]
    elif x.type.dtype in FLOATS and not pool.smooth:
        known += [ops.Div(), ops.Pow()]
    pool.add(pool.b(draw(st.sampled_from(known)), *operands))


def _compare(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    y = _partner(draw, pool, x)
    known = [ops.Less(), ops.LessEqual(), ops.Greater(), ops.GreaterEqual(), ops.Equal()]
    condition = pool.b(draw(st.sampled_from(known)), x, y)
    pool.add(condition, pool.b(ops.Where(), condition, x, y))


def _partner(draw: st.DrawFn, pool: Pool, x: Value) -> Value:
    """A value of the same type, or a constant of its dtype, often a neutral one."""
    same = [v for v in pool.values if v.type == x.type]
    if draw(st.booleans()):
        return draw(st.sampled_from(same))
    if x.type.dtype == "bool":
        return ops.constant(pool.b, draw(st.booleans()), "bool")
    if x.type.dtype in INTEGERS:
        lowest = 0 if x.type.dtype == "u8" else -3
        return ops.constant(pool.b, draw(st.integers(lowest, 3)), x.type.dtype)
    known = _CONSTANTS[:5] if pool.smooth else _CONSTANTS
    return ops.constant(pool.b, draw(st.sampled_from(known)), x.type.dtype)


def _constants(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    """A chain of constants, and sizes against numbers: what folding and bounds decide."""
    one = ops.constant(pool.b, draw(st.integers(-2, 5000)), "i64")
    size = pool.b(ops.SizeOf(draw(st.sampled_from([*_SURE, 3]))))
    pair = draw(st.permutations([one, size]))
    known = [ops.Less(), ops.GreaterEqual(), ops.Equal(), ops.Minimum(), ops.Maximum()]
    pool.add(pool.b(draw(st.sampled_from(known)), *pair))
    pool.add(pool.b(ops.Iota(draw(st.sampled_from([*_SURE, 1, 3])))))
    row = ops.constant(pool.b, (0.5, -0.0, 2.0), "f32")
    pool.add(pool.b(ops.Mul(), row, row))
    pool.add(pool.b(ops.Weight(f"w{draw(st.integers(0, 1))}", TensorType("f32", (3, 2)))))


def _cast(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    """A cast; folding rounds constants to 16 bits, which the judge does not."""
    known = ["f32", "f64", *([] if pool.smooth else ["bf16"])]
    if not (pool.smooth and x.type.dtype in FLOATS):
        known += ["i64", "bool"]
    pool.add(pool.b(ops.Cast(draw(st.sampled_from(known))), x))


def _reshape(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    shape, rank = x.type.shape, x.type.rank
    known: list[OpDef] = [ops.Unsqueeze((0,)), ops.Unsqueeze((-1,)), ops.Reshape((1, *shape))]
    known.append(ops.Transpose(tuple(draw(st.permutations(range(rank))))))
    known.append(ops.Expand((draw(st.sampled_from([2, dim("B")])), *shape)))
    known += [ops.Squeeze((i - rank,)) for i, size in enumerate(shape) if size == 1]
    if rank > 1:
        known.append(ops.Reshape((shape[0] * shape[1], *shape[2:])))
    if rank < 5:
        pool.values.append(pool.b(draw(st.sampled_from(known)), x))


def _cut(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    axis = draw(st.integers(-x.type.rank, x.type.rank - 1))
    size = x.type.shape[axis]
    first = 1 if _sure(size) else size
    start, stop = draw(st.sampled_from([(0, size), (0, first), (first, size)]))
    part = pool.b(ops.Slice(axis, start, stop, draw(st.integers(1, 2))), x)
    nothing = pool.b(ops.Slice(axis, 0, 0), x)
    whole = pool.b(ops.Concat(axis), *draw(st.permutations([x, part, nothing])))
    before, after = draw(st.integers(0, 1)), draw(st.sampled_from([0, 1, dim("P")]))
    pool.values += [part, whole, pool.b(ops.Pad(axis, before, after), whole)]


def _reduce(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    axis = draw(st.integers(-x.type.rank, x.type.rank - 1))
    keep = draw(st.booleans())
    if x.type.dtype == "bool":
        pool.add(pool.b(ops.Reduce(draw(st.sampled_from(["any", "all"])), (axis,), keep), x))
        return
    kinds = ["sum", "max", "min", *(["mean"] if x.type.dtype in FLOATS else [])]
    known: list[OpDef] = [ops.Reduce(draw(st.sampled_from(kinds)), (axis,), keep)]
    known.append(ops.CumSum(axis, draw(st.booleans()), draw(st.booleans())))
    if x.type.dtype in FLOATS:
        known.append(ops.Softmax(axis))
    if _sure(x.type.shape[axis]) and not (pool.smooth and x.type.dtype in FLOATS):
        known.append(ops.ArgMax(axis, keep))
    pool.add(pool.b(draw(st.sampled_from(known)), x))


def _norm(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    known = [(ops.RmsNorm(0.5), 1), (ops.LayerNorm(0.5), 2)]
    defn, weights = draw(st.sampled_from(known))
    pool.add(pool.b(defn, x, *[None] * weights))


def _gather(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    axis = draw(st.integers(0, x.type.rank - 1))
    index = draw(st.sampled_from([0, (0,), (-1, 0), ((0,),)]))
    pool.values.append(pool.b(ops.Gather(axis), x, ops.constant(pool.b, index, "i64")))


def _product(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    other = [*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2]
    pool.add(pool.b(ops.Matmul(), x, pool.b(ops.Transpose(tuple(other)), x)))


def _scan(draw: st.DrawFn, pool: Pool, x: Value) -> None:
    """A scan along an axis of ``x``, with carries and constants from the pool; or two of one."""
    axis = draw(st.sampled_from([i for i, s in enumerate(x.type.shape) if _sure(s)]))
    few = st.lists(st.sampled_from(pool.values), max_size=2)
    carries, constants = draw(few), draw(few)
    shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
    types = [v.type for v in carries] + [x.type.with_shape(shape)] + [v.type for v in constants]
    body = _body(draw, pool, types, len(carries), axis)
    defn = ops.Scan(len(carries), 1, axis, draw(st.booleans()))
    for _ in range(draw(st.integers(1, 2))):
        pool.values += pool.b.emit(defn, *carries, x, *constants, body=body)


def _body(draw: st.DrawFn, pool: Pool, types: list[TensorType], carries: int, axis: int) -> Block:
    """A cell of random ops; new carries may be old ones, in another order too."""
    params = [Value(type) for type in types]
    inner = Pool(Builder(), list(params), pool.smooth, pool.depth + 1)
    for _ in range(draw(st.integers(0, 4))):
        apply_some_op(draw, inner)
    results = [
        draw(st.sampled_from([v for v in inner.values if v.type == type]))
        for type in types[:carries]
    ]
    high = [v for v in inner.values if axis <= v.type.rank < 5]
    results += draw(st.lists(st.sampled_from(high), max_size=2)) if high else []
    if not results:
        results = [params[carries]]
    return inner.b.block(params, results)


def _sure(size: Size) -> bool:
    """Whether an axis surely has an element."""
    return size in _SURE if symbols_of(size) else size != 0


def _axes(x: Value, pool: Pool) -> bool:
    return x.type.rank > 0


_KINDS: dict[str, tuple[Callable[[Value, Pool], bool], Callable[..., None]]] = {
    "unary": (lambda x, pool: True, _unary),
    "binary": (lambda x, pool: True, _binary),
    "compare": (
        lambda x, pool: x.type.dtype in INTEGERS or (x.type.dtype in FLOATS and not pool.smooth),
        _compare,
    ),
    "constants": (lambda x, pool: True, _constants),
    "cast": (lambda x, pool: True, _cast),
    "reshape": (lambda x, pool: True, _reshape),
    "cut": (_axes, _cut),
    "reduce": (_axes, _reduce),
    "norm": (
        lambda x, pool: x.type.dtype in FLOATS and x.type.rank > 0 and _sure(x.type.shape[-1]),
        _norm,
    ),
    "gather": (lambda x, pool: all(map(_sure, x.type.shape)) and x.type.rank > 0, _gather),
    "product": (lambda x, pool: 1 < x.type.rank < 4 and x.type.dtype != "bool", _product),
    "scan": (lambda x, pool: pool.depth < 2 and any(map(_sure, x.type.shape)), _scan),
}
