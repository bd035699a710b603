"""Rotation of pairs of features by given tables.

B batch, H heads, S sequence, K head size, R rotated size (R <= K; the rest passes through).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Mul, Sub
from seqmix_ir.ops.precision import accumulator, narrow, widen, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Reshape, Squeeze, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Rotary"]


@op
class Rotary(OpDef):
    """``(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)`` for R/2 pairs of the first R features.

    ``x [B,H,S,K]``, ``cos`` and ``sin [B,S,R/2]`` in the dtype of ``x`` or wider. A pair is
    features ``i`` and ``i + R/2``, or ``2i`` and ``2i + 1`` when ``interleaved``.
    """

    name = "rotary"
    operands = ("x", "cos", "sin")
    results = ("y",)
    interleaved: bool = False

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> tuple[TensorType, ...]:
        expect_rank("x", x, 4, "[B, H, S, K]")
        expect_rank("cos", cos, 3, "[B, S, R/2]")
        expect_dtype("x", x, FLOATS)
        same_dtype(cos=cos, sin=sin)
        expect_dtype("cos", cos, (x.dtype, wider_dtype(x.dtype)))
        B, _, S, K = x.shape
        half = cos.shape[2]
        if not isinstance(K, int) or not isinstance(half, int):
            raise IRError(f"the head size must be known: 'x' is {x}, 'cos' is {cos}")
        expect_shape("cos", cos, (B, S, half), f"'x' is {x}")
        expect_shape("sin", sin, cos.shape, f"'cos' is {cos}")
        if 2 * half > K:
            raise IRError(
                f"axis 2 of 'cos' ({cos}) is {half}, so {2 * half} features turn, but the last "
                f"axis of 'x' ({x}) is {K}"
            )
        return (x,)

    def evaluate(self, run: Run, x: Array, cos: Array, sin: Array) -> tuple[Array, ...]:
        half = cos.shape[-1]
        c, s = cos[:, None], sin[:, None]
        y = x.astype(accumulator(run, x), copy=True)
        if self.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        x1, x2 = y[..., first].copy(), y[..., second].copy()
        y[..., first] = x1 * c - x2 * s
        y[..., second] = x2 * c + x1 * s
        return (y,)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        found = []
        for S, half, interleaved in ((5, 3, False), (1, 3, True), (5, 2, True), (2, 2, False)):
            angle = rng.standard_normal((2, S, half))
            x = rng.standard_normal((2, 3, S, 6))
            found.append(Example(cls(interleaved), (x, np.cos(angle), np.sin(angle))))
        return found

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x, cos, sin = op.values
        K, half = x.type.shape[3], cos.type.shape[2]
        turned = b(Slice(3, 0, 2 * half), x)
        x1, x2 = self._pairs(b, widen(b, turned), half)
        c, s = (b(Unsqueeze((1,)), narrow(b, t, x1.type.dtype)) for t in (cos, sin))
        y1 = b(Sub(), b(Mul(), x1, c), b(Mul(), x2, s))
        y2 = b(Add(), b(Mul(), x2, c), b(Mul(), x1, s))
        y = narrow(b, self._join(b, y1, y2, turned.type), x.type.dtype)
        if 2 * half == K:
            return (y,)
        return (b(Concat(3), y, b(Slice(3, 2 * half, K), x)),)

    def _pairs(self, b: Builder, x: Value, half: Size) -> tuple[Value, Value]:
        if not self.interleaved:
            return b(Slice(3, 0, half), x), b(Slice(3, half, 2 * half), x)
        pairs = b(Reshape((*x.type.shape[:3], half, 2)), x)
        first, second = b(Slice(4, 0, 1), pairs), b(Slice(4, 1, 2), pairs)
        return b(Squeeze((4,)), first), b(Squeeze((4,)), second)

    def _join(self, b: Builder, y1: Value, y2: Value, type: TensorType) -> Value:
        if not self.interleaved:
            return b(Concat(3), y1, y2)
        pairs = b(Concat(4), b(Unsqueeze((4,)), y1), b(Unsqueeze((4,)), y2))
        return b(Reshape(type.shape), pairs)


OPS: tuple[type[OpDef], ...] = (Rotary,)
