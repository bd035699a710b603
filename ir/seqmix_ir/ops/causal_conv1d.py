"""Short depthwise causal convolution with the inputs it still needs as state.

B batch, D channels, S sequence, W taps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.activation import Silu, sigmoid
from seqmix_ir.ops.arithmetic import Add, Mul
from seqmix_ir.ops.precision import accumulator, narrow, widen
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.ops.segments import Concat, Slice
from seqmix_ir.ops.shape import Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "CausalConv1d"]


@op
class CausalConv1d(OpDef):
    """``y[t] = activation(bias + sum_w weight[w] * seq[t + w])`` with ``seq = [tail, x]``.

    ``x [B,D,S]``, ``weight [D,W]``, ``bias [D]``, ``tail [B,D,W-1]`` (the last inputs, zeros at
    the start) -> ``y [B,D,S]`` and the next tail. ``weight[:, W-1]`` meets the current input.
    """

    name = "causal_conv1d"
    operands = ("x", "weight", "bias?", "tail")
    results = ("y", "next_tail")
    activation: str = ""

    def infer(
        self, x: TensorType, weight: TensorType, bias: TensorType | None, tail: TensorType
    ) -> tuple[TensorType, ...]:
        if self.activation not in ("", "silu"):
            raise IRError(f"activation is {self.activation!r}, expected '' or 'silu'")
        expect_rank("x", x, 3, "[B, D, S]")
        expect_rank("weight", weight, 2, "[D, W]")
        same_dtype(x=x, weight=weight, bias=bias, tail=tail)
        expect_dtype("x", x, FLOATS)
        B, D, _ = x.shape
        W = weight.shape[1]
        if not isinstance(W, int) or W < 1:
            raise IRError(f"axis 1 of 'weight' ({weight}) is {W}, expected a number from 1")
        expect_shape("weight", weight, (D, W), f"'x' is {x}")
        expect_shape("tail", tail, (B, D, W - 1), f"'x' is {x}, 'weight' is {weight}")
        if bias is not None:
            expect_shape("bias", bias, (D,), f"'x' is {x}")
        return x, tail

    def evaluate(
        self, run: Run, x: Array, weight: Array, bias: Array | None, tail: Array
    ) -> tuple[Array, ...]:
        S, W = x.shape[2], weight.shape[1]
        seq = np.concatenate((tail, x), axis=2)
        wide = accumulator(run, x)
        y = np.zeros(x.shape, wide)
        for w in range(W):
            y += seq[:, :, w : w + S].astype(wide, copy=False) * weight[:, w, None]
        if bias is not None:
            y += bias[:, None]
        if self.activation:
            y = y * sigmoid(y)
        return y, seq[:, :, S:]

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        found = []
        for W, S, activation in ((1, 5, ""), (2, 1, "silu"), (4, 9, "silu"), (4, 2, "")):
            x, tail = rng.standard_normal((2, 3, S)), rng.standard_normal((2, 3, W - 1))
            bias = None if S == 1 else rng.standard_normal(3)
            found.append(Example(cls(activation), (x, rng.standard_normal((3, W)), bias, tail)))
        return found

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        x, weight, bias, tail = op.operands
        if x is None or weight is None or tail is None:
            raise IRError(f"{op.loc}: 'causal_conv1d' lacks 'x', 'weight' or 'tail'")
        S, W = x.type.shape[2], weight.type.shape[1]
        seq = b(Concat(2), tail, x)
        next_tail = b(Slice(2, S, S + W - 1), seq)
        y = self._taps(b, widen(b, seq), widen(b, weight), S)
        if bias is not None:
            y = b(Add(), y, b(Unsqueeze((1,)), widen(b, bias)))
        if self.activation:
            y = b(Silu(), y)
        return narrow(b, y, x.type.dtype), next_tail

    def _taps(self, b: Builder, seq: Value, weight: Value, S: Size) -> Value:
        W = weight.type.shape[1]
        if not isinstance(W, int):
            raise IRError(f"'causal_conv1d' with {W} taps: the number must be known")
        terms = [
            b(Mul(), b(Slice(2, w, S + w), seq), b(Slice(1, w, w + 1), weight)) for w in range(W)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = b(Add(), total, term)
        return total


OPS: tuple[type[OpDef], ...] = (CausalConv1d,)
