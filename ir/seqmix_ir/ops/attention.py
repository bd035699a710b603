"""Softmax attention masked by positions.

B batch, H query heads, G key heads (H is a multiple of G), S queries, T keys, K key size,
V value size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.attention_direct import decompose_attention
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import (
    expect_dtype,
    expect_rank,
    expect_shape,
    same_dtype,
    show_shape,
)
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Attention"]


@op
class Attention(OpDef):
    """Attention of every query to the keys that it sees; query heads share key heads in groups.

    ``q [B,H,S,K]``, ``k [B,G,T,K]``, ``v [B,G,T,V]``, positions ``[B,S]`` and ``[B,T]`` (i64, -1
    is padding), ``bias`` broadcastable to ``[B,H,S,T]``, ``sinks [H]`` (one more logit in the
    denominator) -> ``[B,H,S,V]``. A key is seen where both positions are 0 or more and, if
    ``causal``, the key's is not larger and, with a ``window``, less than ``window`` smaller. A
    query that sees nothing gives 0. ``scale`` 0 stands for ``1/sqrt(K)``. Logits, softmax and
    sums are float32 or wider.
    """

    name = "attention"
    operands = ("q", "k", "v", "query_positions", "key_positions", "bias?", "sinks?")
    results = ("y",)
    scale: float = 0.0
    causal: bool = True
    window: int = 0

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        query_positions: TensorType,
        key_positions: TensorType,
        bias: TensorType | None,
        sinks: TensorType | None,
    ) -> tuple[TensorType, ...]:
        if self.window < 0:
            raise IRError(f"window is {self.window}, expected 0 (no window) or more")
        B, H, S, K = _axes("q", q, "[B, H, S, K]")
        _, G, T, _ = _axes("k", k, "[B, G, T, K]")
        _, _, _, V = _axes("v", v, "[B, G, T, V]")
        same_dtype(q=q, k=k, v=v)
        expect_dtype("q", q, FLOATS)
        expect_shape("k", k, (B, G, T, K), f"'q' is {q}")
        expect_shape("v", v, (B, G, T, V), f"'k' is {k}")
        _check_heads(H, G)
        for name, type, shape in (
            ("query_positions", query_positions, (B, S)),
            ("key_positions", key_positions, (B, T)),
        ):
            expect_dtype(name, type, ("i64",))
            expect_shape(name, type, shape, f"'q' is {q}, 'k' is {k}")
        _check_logits(q, T, bias, sinks)
        return (q.with_shape((B, H, S, V)),)

    def evaluate(
        self,
        run: Run,
        q: Array,
        k: Array,
        v: Array,
        query_positions: Array,
        key_positions: Array,
        bias: Array | None,
        sinks: Array | None,
    ) -> tuple[Array, ...]:
        q, k, v = (x.astype(accumulator(run, x), copy=False) for x in (q, k, v))
        logits = self._logits(q, k, bias)
        seen = self._seen(query_positions, key_positions)
        logits = np.where(seen[:, None], logits, q.dtype.type(-np.inf))
        top = logits.max(-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            sink = sinks.astype(q.dtype, copy=False)[:, None, None]
            top = np.maximum(top, sink)
        top = np.where(np.isneginf(top), q.dtype.type(0), top)
        weights = np.exp(logits - top)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        y = _grouped_product(weights, v)
        return (y / np.where(total == 0, q.dtype.type(1), total),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        q, k, v = (
            rng.standard_normal((2, h, s, n)) for h, s, n in ((6, 5, 4), (2, 8, 4), (2, 8, 3))
        )
        query_positions = np.array([[3, 4, 5, 6, 7], [-1, -1, 2, -1, 3]])
        key_positions = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 1, -1, -1, 2, -1, 3]])
        plain = (q, k, v, query_positions, key_positions)
        bias, sinks = rng.standard_normal((1, 6, 5, 8)), rng.standard_normal(6)
        square = (*(rng.standard_normal((1, 2, 3, 5)) for _ in range(3)), *[np.arange(3)[None]] * 2)
        return [
            Example(cls(), (*plain, None, None)),
            Example(cls(scale=0.7, window=3), (*plain, bias, sinks)),
            Example(cls(causal=False), (*plain, None, sinks)),
            Example(cls(), (*square, None, None)),
        ]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        y = decompose_attention(b, op, self.scale, self.causal, self.window)
        return (y,)

    def _logits(self, q: Array, k: Array, bias: Array | None) -> Array:
        scale = self.scale or 1 / math.sqrt(max(q.shape[-1], 1))
        logits = _grouped_product(q, np.swapaxes(k, -1, -2)) * scale
        return logits if bias is None else logits + bias.astype(logits.dtype, copy=False)

    def _seen(self, query_positions: Array, key_positions: Array) -> Array:
        """What each query sees, ``[B, S, T]``."""
        qp, kp = query_positions[:, :, None], key_positions[:, None, :]
        seen: Array = (qp >= 0) & (kp >= 0)
        if self.causal:
            seen &= kp <= qp
        if self.window:
            seen &= qp - kp < self.window
        return seen


def _grouped_product(x: Array, y: Array) -> Array:
    """``x [B, H, M, N] @ y [B, G, N, O]``, where H/G heads of ``x`` share one of ``y``."""
    B, H, M, N = x.shape
    G = y.shape[1]
    shared = x.reshape(B, G, H // G * M, N) @ y
    return shared.reshape(B, H, M, y.shape[-1])


def _axes(name: str, type: TensorType, layout: str) -> tuple[Any, Any, Any, Any]:
    expect_rank(name, type, 4, layout)
    first, second, third, fourth = type.shape
    return first, second, third, fourth


def _check_heads(H: Size, G: Size) -> None:
    if not isinstance(H, int) or not isinstance(G, int):
        raise IRError(f"the numbers of heads must be known, 'q' has {H} and 'k' has {G}")
    if G < 1 or H % G:
        raise IRError(f"'q' has {H} heads, 'k' has {G}; the first must be a multiple of the second")


def _check_logits(
    q: TensorType, T: Size, bias: TensorType | None, sinks: TensorType | None
) -> None:
    """What is added to the logits has the dtype of ``q`` or the one that they are computed in."""
    B, H, S, _ = q.shape
    allowed = (q.dtype, wider_dtype(q.dtype))
    if bias is not None:
        expect_dtype("bias", bias, allowed)
        _check_bias(bias, (B, H, S, T))
    if sinks is not None:
        expect_dtype("sinks", sinks, allowed)
        expect_shape("sinks", sinks, (H,), "the heads of 'q'")


def _check_bias(bias: TensorType, shape: tuple[Size, ...]) -> None:
    if bias.rank > 4:
        raise IRError(f"'bias' is {bias}, expected to broadcast to {show_shape(shape)}")
    for axis, (found, want) in enumerate(zip(reversed(bias.shape), reversed(shape), strict=False)):
        if found not in (1, want):
            raise IRError(
                f"axis {bias.rank - 1 - axis} of 'bias' ({bias}) is {found}, expected 1 or {want} "
                f"(it broadcasts to {show_shape(shape)})"
            )


OPS: tuple[type[OpDef], ...] = (Attention,)
