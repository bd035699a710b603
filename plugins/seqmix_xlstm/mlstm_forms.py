"""The mLSTM cell in simpler ops: as a linear attention, and as a loop over the tokens.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.builder import trace_block
from seqmix_ir.ops.activation import Softplus
from seqmix_ir.ops.arithmetic import Add, Div, Maximum, Minimum, Mul, Sub
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Abs, Exp, Neg, Tanh
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.linear_attention import LinearAttention
from seqmix_ir.ops.linear_scan import LinearScan
from seqmix_ir.ops.logic import Less, Where
from seqmix_ir.ops.precision import narrow, wider_dtype
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Expand, Squeeze, Transpose, Unsqueeze
from seqmix_ir.types import TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value
    from seqmix_xlstm.mlstm_op import Mlstm

__all__ = ["HIGHEST", "LOWEST", "attend", "recur"]

LOWEST = -1e30
"""The smallest stabiliser after any token: one of -inf could not be subtracted from itself."""
HIGHEST = {"f32": 88.0, "f64": 700.0}
"""Above these exp overflows; h is 0 in either dtype long before."""


@dataclass(frozen=True)
class _Cell:
    """The operands in the dtype of the sums: one of q and k scaled, v widened by ones."""

    q: Value
    k: Value
    v: Value
    log_i: Value
    log_f: Value
    state: Value
    m: Value


def attend(b: Builder, op: Op, defn: Mlstm) -> tuple[Value, ...]:
    """The stabiliser by a linear scan over (max, +), all else by one linear attention.

    Its decay is ``log f_t + m_{t-1} - m_t``, its keys are weighted by ``exp(i_t - m_t)``, and the
    column of ones in its values carries the normalizer.
    """
    x = _cell(b, op, defn)
    decay, weight, floor, last = x.log_f, x.log_i, None, op.values[6]
    if defn.stabilised:
        scan = LinearScan("max_plus")
        stabilizer, m = (
            _finite(b, s) for s in b.emit(scan, _rows(b, decay), _rows(b, weight), x.m)
        )
        before, now = _before_and_now(b, x.m, stabilizer)
        decay = b(Sub(), b(Add(), decay, before), now)
        weight = b(Sub(), weight, now)
        floor, last = _floor(b, now), narrow(b, m, last.type.dtype)
    k = b(Mul(), x.k, b(Unsqueeze((3,)), b(Exp(), weight)))
    y, state = b.emit(LinearAttention(defn.chunk), x.q, k, x.v, decay, x.state)
    h = _divided(b, defn, y, floor)
    return _as_declared(b, op, h, state, last)


def recur(b: Builder, op: Op, defn: Mlstm) -> tuple[Value, ...]:
    """A loop over the tokens."""
    x = _cell(b, op, defn)
    carries = [x.state, x.m] if defn.stabilised else [x.state]
    sequences = [x.q, x.k, x.v, x.log_i, x.log_f]
    types = [c.type for c in carries] + [_token_type(s.type) for s in sequences]
    hints = "state m q k v i f" if len(carries) == 2 else "state q k v i f"

    def step(inner: Builder, *given: Value) -> tuple[Value, ...]:
        return _step(inner, defn, given[: len(carries)], *given[len(carries) :])

    body = trace_block(types, step, hints, b.loc)
    *after, h = b.emit(Scan(len(carries), 5, 2), *carries, *sequences, body=body)
    last = after[1] if len(after) == 2 else op.values[6]
    return _as_declared(b, op, h, after[0], last)


def _step(
    b: Builder,
    defn: Mlstm,
    carries: tuple[Value, ...],
    q: Value,
    k: Value,
    v: Value,
    log_i: Value,
    log_f: Value,
) -> tuple[Value, ...]:
    """One token: ``q``, ``k [B, H, K]``, ``v [B, H, V + 1]``, gates ``[B, H]``."""
    state, *rest = carries
    floor = None
    if rest:
        kept = b(Add(), log_f, rest[0])
        now = _finite(b, b(Maximum(), kept, log_i))
        log_f, log_i = b(Sub(), kept, now), b(Sub(), log_i, now)
        rest, floor = [now], _floor(b, now)
    decay, weight = (b(Unsqueeze((2,)), b(Exp(), g)) for g in (log_f, log_i))
    added = b(Mul(), b(Unsqueeze((3,)), b(Mul(), k, weight)), b(Unsqueeze((2,)), v))
    state = b(Add(), b(Mul(), state, b(Unsqueeze((3,)), decay)), added)
    y = b(Squeeze((2,)), b(Matmul(), b(Unsqueeze((2,)), q), state))
    return (state, *rest, _divided(b, defn, y, floor))


def _cell(b: Builder, op: Op, defn: Mlstm) -> _Cell:
    wide = wider_dtype(op.values[0].type.dtype)
    q, k, v, log_i, f, state, m = (narrow(b, x, wide) for x in op.values)
    B, H, S, K = q.type.shape
    scale = constant(b, _root(K), wide)
    q, k = (b(Mul(), q, scale), k) if defn.scale_on == "q" else (q, b(Mul(), k, scale))
    log_i, f = _capped(b, log_i, defn.soft_cap), _capped(b, f, defn.soft_cap)
    log_i = log_i if defn.stabilised else _log_sigmoid(b, log_i)
    ones = b(Expand((B, H, S, 1)), constant(b, 1.0, wide))
    return _Cell(q, k, b(Concat(3), v, ones), log_i, _log_sigmoid(b, f), state, m)


def _root(size: object) -> float:
    if not isinstance(size, int):
        raise TypeError(f"the key size is {size}, expected a number")
    return float(size**-0.5)


def _capped(b: Builder, gate: Value, cap: float) -> Value:
    """``cap * tanh(gate / cap)``, infinities as they are."""
    if not cap:
        return gate
    dtype = gate.type.dtype
    limit = constant(b, cap, dtype)
    bounded = b(Mul(), b(Tanh(), b(Div(), gate, limit)), limit)
    finite = b(Less(), b(Abs(), gate), constant(b, np.inf, dtype))
    return b(Where(), finite, bounded, gate)


def _log_sigmoid(b: Builder, x: Value) -> Value:
    return b(Neg(), b(Softplus(), b(Neg(), x)))


def _before_and_now(b: Builder, m: Value, stabilizer: Value) -> tuple[Value, Value]:
    """The stabiliser before and after each token, ``[B, H, S]``."""
    S = stabilizer.type.shape[1]
    first = b(Unsqueeze((1,)), m)
    before = first if S == 1 else b(Concat(1), first, b(Slice(1, 0, S - 1), stabilizer))
    return b(Transpose((0, 2, 1)), before), b(Transpose((0, 2, 1)), stabilizer)


def _rows(b: Builder, gate: Value) -> Value:
    """``[B, H, S]`` as ``[B, S, H]``."""
    return b(Transpose((0, 2, 1)), gate)


def _finite(b: Builder, m: Value) -> Value:
    return b(Maximum(), m, constant(b, LOWEST, m.type.dtype))


def _floor(b: Builder, m: Value) -> Value:
    """``exp(-m)``, which does not overflow."""
    dtype = m.type.dtype
    return b(Exp(), b(Minimum(), b(Neg(), m), constant(b, HIGHEST[dtype], dtype)))


def _divided(b: Builder, defn: Mlstm, y: Value, floor: Value | None) -> Value:
    """``y [.., V + 1]``, whose last column is the normalizer's part, as ``h [.., V]``."""
    axis, V = y.type.rank - 1, y.type.shape[-1] - 1
    h = b(Slice(axis, 0, V), y)
    if not defn.normalize:
        return h
    dtype = y.type.dtype
    size = b(Abs(), b(Slice(axis, V, V + 1), y))
    if floor is None:
        return b(Div(), h, b(Maximum(), size, constant(b, 1.0, dtype)))
    below = b(Maximum(), size, b(Unsqueeze((axis,)), floor))
    return b(Div(), h, b(Add(), below, constant(b, defn.eps, dtype)))


def _token_type(sequence: TensorType) -> TensorType:
    """One token of a sequence ``[B, H, S, ..]``."""
    return sequence.with_shape((*sequence.shape[:2], *sequence.shape[3:]))


def _as_declared(b: Builder, op: Op, *results: Value) -> tuple[Value, ...]:
    """The results in the dtypes of the op's own."""
    declared = (result.type.dtype for result in op.results)
    return tuple(narrow(b, x, dtype) for x, dtype in zip(results, declared, strict=True))
