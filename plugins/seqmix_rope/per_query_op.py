"""Attention whose rotary frequencies are others for every query.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size, R rotated size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.builder import trace_block
from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Mul, Sub
from seqmix_ir.ops.attention import Attention
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Cos, Round, Sin
from seqmix_ir.ops.precision import narrow, wider_dtype
from seqmix_ir.ops.rotary import Rotary
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.shape import Squeeze, Transpose, Unsqueeze
from seqmix_ir.types import DType, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "PerQueryAttention"]


@op
class PerQueryAttention(OpDef):
    """Causal attention in which every query turns the keys by frequencies of its own.

    ``q [B,H,S,K]``, ``k [B,G,T,K]`` and ``v [B,G,T,V]`` are not rotated; positions are ``[B,S]``
    and ``[B,T]`` (i64, -1 is padding), ``inv_freq [B,S,R/2]`` radians per token, ``magnitude
    [B,S]`` a factor -> ``y [B,H,S,V]``. The query at place s, position p, meets the key of position
    p' as :class:`~seqmix_ir.ops.Rotary` turns it by the angles ``(p' - p) * inv_freq[s]``, its
    first R entries multiplied by ``magnitude[s]``; the rest is attention with ``scale`` and
    ``window``.
    Angles are computed in the dtype of ``inv_freq``, f32 or f64.
    """

    name = "rope.per_query_attention"
    operands = ("q", "k", "v", "query_positions", "key_positions", "inv_freq", "magnitude")
    results = ("y",)
    scale: float = 0.0
    window: int = 0
    interleaved: bool = False

    @property
    def attention(self) -> Attention:
        """What is left once the keys are turned."""
        return Attention(scale=self.scale, window=self.window)

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        query_positions: TensorType,
        key_positions: TensorType,
        inv_freq: TensorType,
        magnitude: TensorType,
    ) -> tuple[TensorType, ...]:
        results = self.attention.infer(q, k, v, query_positions, key_positions, None, None)
        expect_rank("inv_freq", inv_freq, 3, "[B, S, R/2]")
        half, K = inv_freq.shape[2], q.shape[3]
        expect_dtype("inv_freq", inv_freq, ("f32", "f64"))
        expect_shape("inv_freq", inv_freq, (q.shape[0], q.shape[2], half), f"'q' is {q}")
        expect_dtype("magnitude", magnitude, (inv_freq.dtype,))
        expect_shape("magnitude", magnitude, inv_freq.shape[:2], f"'inv_freq' is {inv_freq}")
        if isinstance(K, int) and isinstance(half, int) and 2 * half > K:
            raise IRError(f"'inv_freq' ({inv_freq}) turns {2 * half} entries, 'q' ({q}) has {K}")
        return results

    def evaluate(self, run: Run, *operands: Array) -> tuple[Array, ...]:
        """Query by query."""
        q, k, v, query_positions, key_positions, inv_freq, magnitude = operands
        rows = []
        for s in range(q.shape[2]):
            place = query_positions[:, s : s + 1]
            distance = (key_positions - place)[..., None].astype(inv_freq.dtype)
            angles = distance * inv_freq[:, s : s + 1]
            factor = magnitude[:, s, None, None]
            (turned,) = Rotary(self.interleaved).evaluate(
                run, k, np.cos(angles) * factor, np.sin(angles) * factor
            )
            rows.append(
                self.attention.evaluate(
                    run, q[:, :, s : s + 1], turned, v, place, key_positions, None, None
                )[0]
            )
        return (np.concatenate(rows, 2),)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"recurrent": self._recurrent}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        q, k, v = (rng.normal(size=size) for size in ((2, 6, 5, 6), (2, 2, 8, 6), (2, 2, 8, 3)))
        query_positions = np.array([[3, 4, 5, 6, 7], [-1, -1, 2, -1, 3]])
        key_positions = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 1, -1, -1, 2, -1, 3]])
        inv_freq = 0.5 * rng.random((2, 5, 3)).astype(np.float32)
        magnitude = 1 + rng.random((2, 5)).astype(np.float32)
        places = (query_positions, key_positions)
        one = (q[:, :, :1], k, v, query_positions[:, :1], key_positions)
        return [
            Example(cls(), (q, k, v, *places, inv_freq, magnitude)),
            Example(
                cls(scale=0.7, window=3, interleaved=True),
                (q, k, v, *places, inv_freq[..., :2], magnitude),
            ),
            Example(cls(), (*one, inv_freq[:, :1], magnitude[:, :1])),
        ]

    def _recurrent(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """A loop over the queries; each step turns all keys for one of them."""
        q, k, v, query_positions, key_positions, inv_freq, magnitude = op.values
        sequences = [b(Transpose((0, 2, 1, 3)), q), query_positions, inv_freq, magnitude]
        types = [x.type.with_shape((x.type.shape[0], *x.type.shape[2:])) for x in sequences]
        constants = [k, v, key_positions]
        hints = "q query_positions inv_freq magnitude k v key_positions"
        body = trace_block([*types, *(x.type for x in constants)], self._step, hints, op.loc)
        (y,) = b.emit(Scan(0, len(sequences), 1), *sequences, *constants, body=body)
        return (b(Transpose((0, 2, 1, 3)), y),)

    def _step(
        self,
        b: Builder,
        q: Value,
        query_position: Value,
        inv_freq: Value,
        magnitude: Value,
        k: Value,
        v: Value,
        key_positions: Value,
    ) -> tuple[Value]:
        """One query ``[B, H, K]``."""
        place = b(Unsqueeze((1,)), query_position)
        distance = narrow(b, b(Sub(), key_positions, place), inv_freq.type.dtype)
        angles = b(Mul(), b(Unsqueeze((2,)), distance), b(Unsqueeze((1,)), inv_freq))
        angles = _within_a_turn(b, angles, wider_dtype(k.type.dtype))
        factor = narrow(b, b(Unsqueeze((1, 2)), magnitude), angles.type.dtype)
        cos, sin = (b(Mul(), b(f(), angles), factor) for f in (Cos, Sin))
        turned = b(Rotary(self.interleaved), k, cos, sin)
        row = b(Unsqueeze((2,)), q)
        y = b(self.attention, row, turned, v, place, key_positions, None, None)
        return (b(Squeeze((2,)), y),)


def _within_a_turn(b: Builder, angles: Value, dtype: DType) -> Value:
    """The angles in ``dtype``, where that is narrower less whole turns: functions of few digits.

    What is taken off is exact while they are wide, and cos and sin take half as long after.
    """
    if angles.type.dtype != "f64" or dtype == "f64":
        return narrow(b, angles, dtype)
    wide = angles.type.dtype
    turns = b(Mul(), angles, constant(b, 1 / (2 * math.pi), wide))
    part = narrow(b, b(Sub(), turns, b(Round(), turns)), dtype)
    return b(Mul(), part, constant(b, 2 * math.pi, dtype))


OPS: tuple[type[OpDef], ...] = (PerQueryAttention,)
