"""Linear attention in chunks: products inside a chunk, a short loop over the chunks' states.

B batch, H heads, S sequence, N chunks, C tokens of a chunk, K key size, V value size.

Every decay is a product over the tokens between two places. Its logarithm is summed over just
these tokens, never taken as the difference of two running sums: that would lose digits as the
sums grow, and give NaN after a decay to exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqmix_ir.builder import trace_block
from seqmix_ir.dims import Size, ceildiv
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Mul
from seqmix_ir.ops.constants import Iota, constant
from seqmix_ir.ops.elementwise import Exp
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.logic import Greater, GreaterEqual, Where
from seqmix_ir.ops.precision import narrow, wider_dtype
from seqmix_ir.ops.reduce import CumSum, Reduce
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Pad, Slice
from seqmix_ir.ops.shape import Reshape, Squeeze, Transpose, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["chunk_linear_attention"]

# With a decay per key channel the scores are no matrix product: they take C * C * K products.
_KEY_CHUNK = 16


@dataclass(frozen=True)
class _Chunks:
    """The operands as ``[B, H, N, C, ..]``, in the dtype of the sums."""

    q: Value
    k: Value
    v: Value
    log_decay: Value | None


def chunk_linear_attention(b: Builder, op: Op, chunk: int | None) -> tuple[Value, ...]:
    """The ops that a ``linear_attention`` stands for; ``chunk`` None takes all in one chunk."""
    q, k, v, log_decay, state = op.operands
    if q is None or k is None or v is None or state is None:
        raise IRError(f"{op.loc}: 'linear_attention' lacks one of 'q', 'k', 'v', 'state'")
    B, H, S, _ = q.type.shape
    per_key = log_decay is not None and log_decay.type.rank == 4
    if chunk is not None and per_key:
        chunk = min(chunk, _KEY_CHUNK)
    chunks = _cut(b, (q, k, v, log_decay), S if chunk is None else chunk)
    first = narrow(b, state, wider_dtype(q.type.dtype))
    before, last = _states(b, chunks, first, chunk is None)
    y = b(Add(), _within(b, chunks), _across(b, chunks, before))
    N, C, V = y.type.shape[2:]
    y = b(Reshape((B, H, N * C, V)), y)
    y = b(Slice(2, 0, S), y) if chunk is not None else y
    return narrow(b, y, v.type.dtype), narrow(b, last, state.type.dtype)


def _cut(b: Builder, operands: tuple[Value | None, ...], C: Size) -> _Chunks:
    """Cut the sequences into chunks; tokens of 0 and decays of 1 fill the last one."""
    q = operands[0]
    if q is None:
        raise IRError("'linear_attention' lacks 'q'")
    wide, S = wider_dtype(q.type.dtype), q.type.shape[2]
    N = 1 if C == S else ceildiv(S, C)

    def cut(x: Value) -> Value:
        B, H, _, *rest = x.type.shape
        x = narrow(b, x, wide)
        if N * C != S:
            x = b(Pad(2, 0, N * C - S), x)
        return b(Reshape((B, H, N, C, *rest)), x)

    q, k, v, log_decay = (None if x is None else cut(x) for x in operands)
    if q is None or k is None or v is None:
        raise IRError("'linear_attention' lacks 'k' or 'v'")
    return _Chunks(q, k, v, log_decay)


def _within(b: Builder, x: _Chunks) -> Value:
    """What the tokens of a chunk add to each other's outputs, ``[B, H, N, C, V]``."""
    zero = constant(b, 0.0, x.q.type.dtype)
    seen = _order(b, x.q.type.shape[3], GreaterEqual())
    if x.log_decay is None:
        scores = b(Matmul(), x.q, b(Transpose((0, 1, 2, 4, 3)), x.k))
        return b(Matmul(), b(Where(), seen, scores, zero), x.v)
    decay = _decay_between(b, x.log_decay)
    if x.log_decay.type.rank == 4:
        scores = b(Matmul(), x.q, b(Transpose((0, 1, 2, 4, 3)), x.k))
        scores = b(Mul(), scores, decay)
    else:
        product = b(Mul(), b(Unsqueeze((4,)), x.q), b(Unsqueeze((3,)), x.k))
        scores = b(Reduce("sum", (5,), False), b(Mul(), product, decay))
    return b(Matmul(), b(Where(), seen, scores, zero), x.v)


def _decay_between(b: Builder, log_decay: Value) -> Value:
    """From the token of column s to the token of row t, for s <= t: ``[B, H, N, C, C, (K)]``."""
    per_key = log_decay.type.rank == 5
    later = _order(b, log_decay.type.shape[3], Greater())
    later = b(Unsqueeze((2,)), later) if per_key else later
    zero = constant(b, 0.0, log_decay.type.dtype)
    steps = b(Where(), later, b(Unsqueeze((4,)), log_decay), zero)
    return b(Exp(), b(CumSum(3), steps))


def _order(b: Builder, C: Size, compare: Greater | GreaterEqual) -> Value:
    """Whether row t is later than column s (or the same), ``[C, C]``."""
    place = b(Iota(C))
    return b(compare, b(Unsqueeze((1,)), place), b(Unsqueeze((0,)), place))


def _states(b: Builder, x: _Chunks, first: Value, single: bool) -> tuple[Value, Value]:
    """The state before each chunk, ``[B, H, N, K, V]``, and the one after the last."""
    keys = x.k
    if x.log_decay is not None:
        to_end = b(Exp(), b(CumSum(3, exclusive=True, reverse=True), x.log_decay))
        keys = b(Mul(), keys, _beside_keys(b, to_end))
    added = b(Matmul(), b(Transpose((0, 1, 2, 4, 3)), keys), x.v)
    sequences = [added]
    if x.log_decay is not None:
        total = b(Exp(), b(Reduce("sum", (3,), False), x.log_decay))
        sequences.append(b(Unsqueeze((4,) if total.type.rank == 4 else (3, 4)), total))
    if single:
        last, _ = _pass_on(b, first, *(b(Squeeze((2,)), s) for s in sequences))
        return b(Unsqueeze((2,)), first), last
    slices = [s.type.with_shape(s.type.shape[:2] + s.type.shape[3:]) for s in sequences]
    hints = "state added decay" if len(slices) == 2 else "state added"
    body = trace_block([first.type, *slices], _pass_on, hints, b.loc)
    last, before = b.emit(Scan(1, len(sequences), 2), first, *sequences, body=body)
    return before, last


def _pass_on(
    b: Builder, state: Value, added: Value, decay: Value | None = None
) -> tuple[Value, Value]:
    """From the state before a chunk to the one after it; both are returned, that one first."""
    kept = state if decay is None else b(Mul(), state, decay)
    return b(Add(), kept, added), state


def _across(b: Builder, x: _Chunks, before: Value) -> Value:
    """What the state before a chunk adds to its outputs, ``[B, H, N, C, V]``."""
    q = x.q
    if x.log_decay is not None:
        q = b(Mul(), q, _beside_keys(b, b(Exp(), b(CumSum(3), x.log_decay))))
    return b(Matmul(), q, before)


def _beside_keys(b: Builder, decay: Value) -> Value:
    """A decay with an axis for the key channels."""
    return decay if decay.type.rank == 5 else b(Unsqueeze((4,)), decay)
