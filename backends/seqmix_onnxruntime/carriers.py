"""Ops of this backend alone: what ONNX operators do in one node and the IR in several.

They are made after legalization, by :mod:`seqmix_onnxruntime.fuse`, and are seen by the emitters
only. B batch, H query heads, G key heads, S queries, P past, T keys, K key size, V value size.
"""

from __future__ import annotations

from seqmix_ir.defn import OpDef, op
from seqmix_ir.errors import IRError
from seqmix_ir.types import TensorType

__all__ = ["CachedAttention", "JoinedLinear", "PackedLinearAttention", "PackedRotary", "Split"]


@op
class PackedRotary(OpDef):
    """``rotary`` of heads side by side: ``x [B, S, H * K]``, ``cos`` and ``sin [B, S, R / 2]``."""

    name = "onnxruntime.rotary"
    operands = ("x", "cos", "sin")
    results = ("y",)
    heads: int
    interleaved: bool

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> tuple[TensorType, ...]:
        return (x,)


@op
class CachedAttention(OpDef):
    """``attention`` that appends to its cache: results are y and, with a past, keys and values.

    With ``heads`` 0 operands and y are ``[B, H, S, K]``; else heads lie side by side, ``q [B, S,
    H * K]``, ``k [B, S, G * K]``, ``v [B, S, G * V]``. The past is ``[B, G, P, K]`` either way.
    """

    name = "onnxruntime.attention"
    operands = (
        "q",
        "k",
        "v",
        "query_positions",
        "key_positions",
        "bias?",
        "past_key?",
        "past_value?",
    )
    results = ("y", "*cache")
    scale: float
    causal: bool
    window: int
    heads: int
    kv_heads: int

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        query_positions: TensorType,
        key_positions: TensorType,
        bias: TensorType | None,
        past_key: TensorType | None,
        past_value: TensorType | None,
    ) -> tuple[TensorType, ...]:
        T = key_positions.shape[1]
        if not self.heads:
            y = q.with_shape((*q.shape[:3], v.shape[3]))
        else:
            width = v.shape[2]
            if not isinstance(width, int):
                raise IRError(f"the value size must be known, 'v' is {v}")
            y = q.with_shape((*q.shape[:2], width // self.kv_heads * self.heads))
        caches = [p for p in (past_key, past_value) if p is not None]
        return (y, *(p.with_shape((*p.shape[:2], T, p.shape[3])) for p in caches))


@op
class JoinedLinear(OpDef):
    """``x [.., K]`` times the weights ``keys``, all ``[N, K]`` and side by side.

    The results are pieces of ``sizes``; one may be the product with several of the weights.
    """

    name = "onnxruntime.joined_linear"
    operands = ("x",)
    results = ("*y",)
    keys: tuple[str, ...]
    sizes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return tuple(x.with_shape((*x.shape[:-1], size)) for size in self.sizes)


@op
class PackedLinearAttention(OpDef):
    """``linear_attention`` of heads side by side, with a scale of the queries.

    ``q``, ``k [B, S, H * K]``, ``v [B, S, H * V]``, ``log_decay [B, S, H]`` or ``[B, S, H * K]``,
    ``state [B, H, K, V]`` -> ``y [B, S, H * V]``, the next state.
    """

    name = "onnxruntime.linear_attention"
    operands = ("q", "k", "v", "log_decay?", "state")
    results = ("y", "next_state")
    heads: int
    scale: float = 1.0

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        log_decay: TensorType | None,
        state: TensorType,
    ) -> tuple[TensorType, ...]:
        return v, state


@op
class Split(OpDef):
    """``x`` in pieces of ``sizes`` along ``axis``, which together are all of it."""

    name = "onnxruntime.split"
    operands = ("x",)
    results = ("*y",)
    axis: int
    sizes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return tuple(x.with_shape((*before, size, *after)) for size in self.sizes)
