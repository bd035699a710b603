"""Linear attention with decay: a matrix-valued state that every token adds one outer product to.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.builder import trace_block
from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Mul
from seqmix_ir.ops.elementwise import Exp
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.linear_attention_chunks import chunk_linear_attention
from seqmix_ir.ops.precision import accumulator, narrow, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype, show_shape
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.shape import Squeeze, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "LinearAttention"]


@op
class LinearAttention(OpDef):
    """``S_t = exp(g_t) S_{t-1} + k_t v_t^T`` and ``y_t = q_t^T S_t``, for every head.

    ``q`` and ``k [B,H,S,K]``, ``v [B,H,S,V]``, ``log_decay`` g ``[B,H,S]`` (one per head) or
    ``[B,H,S,K]`` (one per key channel; absent: no decay), ``state [B,H,K,V]`` -> ``y [B,H,S,V]``
    and the next state. Decays are logarithms, at most 0 where the state should stay bounded;
    -inf forgets all. The state and the decays may be float32 beside 16-bit q, k and v; all sums
    are float32 or wider. ``chunk`` is how many tokens one step of the chunkwise form takes in:
    it changes speed and rounding only.
    """

    name = "linear_attention"
    operands = ("q", "k", "v", "log_decay?", "state")
    results = ("y", "next_state")
    chunk: int = 64

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        log_decay: TensorType | None,
        state: TensorType,
    ) -> tuple[TensorType, ...]:
        if self.chunk < 1:
            raise IRError(f"chunk is {self.chunk}, expected 1 or more")
        for name, type, layout in (("q", q, "[B, H, S, K]"), ("v", v, "[B, H, S, V]")):
            expect_rank(name, type, 4, layout)
        same_dtype(q=q, k=k, v=v)
        expect_dtype("q", q, FLOATS)
        B, H, S, K = q.shape
        V = v.shape[3]
        expect_shape("k", k, q.shape, f"'q' is {q}")
        expect_shape("v", v, (B, H, S, V), f"'q' is {q}")
        expect_shape("state", state, (B, H, K, V), f"'k' is {k}, 'v' is {v}")
        allowed = {q.dtype, wider_dtype(q.dtype)}
        expect_dtype("state", state, allowed)
        if log_decay is not None:
            expect_dtype("log_decay", log_decay, allowed)
            _check_decay(q, log_decay)
        return v, state

    def evaluate(
        self, run: Run, q: Array, k: Array, v: Array, log_decay: Array | None, state: Array
    ) -> tuple[Array, ...]:
        wide = accumulator(run, q)
        state = state.astype(wide)
        y = np.empty((*q.shape[:3], v.shape[3]), wide)
        for t in range(q.shape[2]):
            if log_decay is not None:
                decay = np.exp(log_decay[:, :, t].astype(wide, copy=False))
                state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
            state = state + k[:, :, t, :, None].astype(wide) * v[:, :, t, None, :]
            y[:, :, t] = np.einsum("bhk,bhkv->bhv", q[:, :, t].astype(wide), state)
        return y, state

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "chunkwise": self._chunkwise,
            "recurrent": self._recurrent,
            "parallel": self._parallel,
        }

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [
            _example(cls(chunk=4), rng, (2, 3, 9, 5, 7), "head"),
            _example(cls(), rng, (1, 2, 65, 6, 3), "key"),
            _example(cls(chunk=3), rng, (2, 1, 1, 4, 5), ""),
            _example(cls(chunk=2), rng, (1, 1, 7, 3, 2), "key"),
        ]

    def _chunkwise(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """Chunks in parallel, and a short loop that carries the state from chunk to chunk."""
        return chunk_linear_attention(b, op, self.chunk)

    def _parallel(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """The whole sequence as one chunk: quadratic in S, without a loop."""
        return chunk_linear_attention(b, op, None)

    def _recurrent(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """A loop over the tokens."""
        q, k, v, log_decay, state = op.operands
        if q is None or k is None or v is None or state is None:
            raise IRError(f"{op.loc}: 'linear_attention' lacks one of 'q', 'k', 'v', 'state'")
        wide = wider_dtype(q.type.dtype)
        given = [q, k, v, *([] if log_decay is None else [log_decay])]
        sequences = [narrow(b, x, wide) for x in given]
        carry = narrow(b, state, wide)
        slices = [_token_type(x.type) for x in sequences]
        hints = "state q k v" if log_decay is None else "state q k v log_decay"
        body = trace_block([carry.type, *slices], _step, hints, op.loc)
        last, y = b.emit(Scan(1, len(sequences), 2), carry, *sequences, body=body)
        return narrow(b, y, v.type.dtype), narrow(b, last, state.type.dtype)


def _step(
    b: Builder, state: Value, q: Value, k: Value, v: Value, log_decay: Value | None = None
) -> tuple[Value, Value]:
    """One token: the next state, and what the query reads from it."""
    if log_decay is not None:
        tail = (3,) if log_decay.type.rank == 3 else (2, 3)
        state = b(Mul(), state, b(Unsqueeze(tail), b(Exp(), log_decay)))
    added = b(Mul(), b(Unsqueeze((3,)), k), b(Unsqueeze((2,)), v))
    state = b(Add(), state, added)
    y = b(Squeeze((2,)), b(Matmul(), b(Unsqueeze((2,)), q), state))
    return state, y


def _token_type(sequence: TensorType) -> TensorType:
    """One token of a sequence ``[B, H, S, ..]``."""
    return sequence.with_shape((*sequence.shape[:2], *sequence.shape[3:]))


def _check_decay(q: TensorType, log_decay: TensorType) -> None:
    """IRError unless the decays are per head or per key channel."""
    per_head, per_key = q.shape[:3], q.shape
    if log_decay.shape not in (per_head, per_key):
        raise IRError(
            f"operand 'log_decay' is {log_decay}, expected {show_shape(per_head)} (per head) or "
            f"{show_shape(per_key)} (per key channel), as 'q' is {q}"
        )


def _example(
    defn: LinearAttention, rng: np.random.Generator, sizes: tuple[int, ...], decay: str
) -> Example:
    B, H, S, K, V = sizes
    shapes = {"head": (B, H, S), "key": (B, H, S, K)}
    q, k, v = (rng.normal(size=(B, H, S, n)) for n in (K, K, V))
    log_decay = -rng.exponential(0.3, size=shapes[decay]) if decay else None
    return Example(defn, (q, k, v, log_decay, rng.normal(size=(B, H, K, V))))


OPS: tuple[type[OpDef], ...] = (LinearAttention,)
