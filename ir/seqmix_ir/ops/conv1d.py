"""Convolution over one axis, in groups.

B batch, C input channels, M output channels, S sequence, W taps, T output length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size, floordiv
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Mul
from seqmix_ir.ops.constants import Iota, constant
from seqmix_ir.ops.index import Gather
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.precision import accumulator, check_accumulate, narrow, widen
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.ops.segments import Pad
from seqmix_ir.ops.shape import Reshape, Unsqueeze
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Conv1d"]


@op
class Conv1d(OpDef):
    """``y[o, t] = bias[o] + sum_{c, w} weight[o, c, w] * x[c, stride*t + dilation*w - before]``.

    ``x [B,C,S]``, ``weight [M,C/groups,W]``, ``bias [M]`` -> ``[B,M,T]``; ``x`` is 0 outside, as
    far as ``before`` and ``after`` reach. Output channel ``o`` reads the inputs of its own group
    only. It is ONNX Conv over one axis: nothing is flipped.
    """

    name = "conv1d"
    operands = ("x", "weight", "bias?")
    results = ("y",)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    before: int = 0
    after: int = 0
    accumulate: str = "f32"

    def infer(
        self, x: TensorType, weight: TensorType, bias: TensorType | None
    ) -> tuple[TensorType, ...]:
        check_accumulate(self.accumulate)
        self._check_attributes()
        expect_rank("x", x, 3, "[B, C, S]")
        expect_rank("weight", weight, 3, "[M, C/groups, W]")
        same_dtype(x=x, weight=weight, bias=bias)
        expect_dtype("x", x, FLOATS)
        self._check_channels(x, weight)
        if bias is not None:
            expect_shape("bias", bias, weight.shape[:1], f"'weight' is {weight}")
        return (x.with_shape((x.shape[0], weight.shape[0], self._length(x, weight))),)

    def evaluate(self, run: Run, x: Array, weight: Array, bias: Array | None) -> tuple[Array, ...]:
        wide = accumulator(run, x, self.accumulate)
        x = np.pad(x, ((0, 0), (0, 0), (self.before, self.after))).astype(wide, copy=False)
        B, C, S = x.shape
        M, _, W = weight.shape
        reach = self.dilation * (W - 1) + 1
        if reach > S:
            raise IRError(f"{W} taps reach over {reach} elements, the padded 'x' has {S}")
        T = (S - reach) // self.stride + 1
        places = self.stride * np.arange(T) + self.dilation * np.arange(W)[:, None]
        G = self.groups
        seen = x[:, :, places].reshape(B, G, C // G * W, T)
        y = weight.astype(wide, copy=False).reshape(G, M // G, C // G * W) @ seen
        y = y.reshape(B, M, T)
        return (y if bias is None else y + bias[:, None],)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"product": self._product}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 6, 11))
        whole, grouped = rng.standard_normal((5, 6, 3)), rng.standard_normal((9, 2, 4))
        return (
            Example(cls(), (x, whole, rng.standard_normal(5))),
            Example(cls(3, 2, 3, 4, 1), (x, grouped, None)),
            Example(cls(groups=6, before=4), (x, rng.standard_normal((6, 1, 5)), None)),
        )

    def _product(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """A matrix product with what the taps see at every place, gathered side by side."""
        x, weight, bias = op.operands
        if x is None or weight is None:
            raise IRError(f"{op.loc}: 'conv1d' lacks 'x' or 'weight'")
        B, C, _ = x.type.shape
        M, _, W = weight.type.shape
        T, G = op.results[0].type.shape[2], self.groups
        per, out = floordiv(C, G), floordiv(M, G)
        kernel = b(Reshape((G, out, per * W)), widen(b, weight, self.accumulate))
        seen = self._seen(b, widen(b, x, self.accumulate), W, T)
        y = b(Matmul(self.accumulate), kernel, b(Reshape((B, G, per * W, T)), seen))
        y = b(Reshape((B, M, T)), y)
        if bias is not None:
            y = b(Add(), y, b(Unsqueeze((1,)), widen(b, bias, self.accumulate)))
        return (narrow(b, y, x.type.dtype),)

    def _seen(self, b: Builder, x: Value, W: Size, T: Size) -> Value:
        """``[B, C, W, T]``: the elements that tap ``w`` meets at place ``t``."""
        if self.before or self.after:
            x = b(Pad(2, self.before, self.after), x)
        taps = b(Mul(), b(Iota(W)), constant(b, self.dilation, "i64"))
        starts = b(Mul(), b(Iota(T)), constant(b, self.stride, "i64"))
        return b(Gather(2), x, b(Add(), b(Unsqueeze((1,)), taps), starts))

    def _length(self, x: TensorType, weight: TensorType) -> Size:
        S, W = x.shape[2], weight.shape[2]
        if isinstance(W, int) and W < 1:
            raise IRError(f"axis 2 of 'weight' ({weight}) is {W}, expected 1 or more taps")
        free = S + self.before + self.after - self.dilation * (W - 1) - 1
        if isinstance(free, int) and free < 0:
            raise IRError(
                f"{W} taps at dilation {self.dilation} do not fit 'x' ({x}) with {self.before} "
                f"and {self.after} elements around it"
            )
        return floordiv(free, self.stride) + 1

    def _check_channels(self, x: TensorType, weight: TensorType) -> None:
        C, M, per = x.shape[1], weight.shape[0], weight.shape[1]
        if per * self.groups != C:
            raise IRError(
                f"axis 1 of 'x' ({x}) is {C}, expected {per * self.groups}: 'weight' ({weight}) "
                f"reads {per} channels in each of {self.groups} groups"
            )
        if isinstance(M, int) and M % self.groups:
            raise IRError(f"axis 0 of 'weight' ({weight}) is no multiple of {self.groups} groups")

    def _check_attributes(self) -> None:
        for name in ("stride", "dilation", "groups"):
            if (value := getattr(self, name)) < 1:
                raise IRError(f"conv1d: {name} is {value}, expected 1 or more")
        for name in ("before", "after"):
            if (value := getattr(self, name)) < 0:
                raise IRError(f"conv1d: {name} is {value}, expected 0 or more; use slice to cut")


OPS: tuple[type[OpDef], ...] = (Conv1d,)
