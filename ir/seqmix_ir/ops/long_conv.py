"""Causal convolution with a filter that may be as long as the sequence, or longer.

B batch, D channels, C filters per channel, S sequence, P past, L filter taps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.long_conv_direct import decompose_conv, decompose_direct
from seqmix_ir.ops.long_conv_fourier import decompose_fft, decompose_four_step
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_sizes, same_dtype
from seqmix_ir.types import FLOATS, TensorType

__all__ = ["OPS", "LongConv"]


@op
class LongConv(OpDef):
    """``y[t] = sum_l filter[l] * seq[P + t - l]`` with ``seq = [history, x]``, oldest first.

    ``x [B,D,S]``, ``filter [C*D,L]``, ``history [B,D,P]`` (none at the start, P may be 0) -> ``y
    [B,C*D,S]``; row ``c*D + d`` is that of filter c on channel d, with C above 1 only where D is
    known. Taps that reach before the sequence add nothing, so L and P + S are free of each
    other. Computed in float32 at least, whatever goes in; the filter may have that wider dtype.
    """

    name = "long_conv"
    operands = ("x", "filter", "history?")
    results = ("y",)

    def infer(
        self, x: TensorType, filter: TensorType, history: TensorType | None
    ) -> tuple[TensorType, ...]:
        expect_rank("x", x, 3, "[B, D, S]")
        expect_dtype("x", x, FLOATS)
        expect_rank("filter", filter, 2, "[D, L]")
        expect_dtype("filter", filter, (x.dtype, wider_dtype(x.dtype)))
        B, D, S = x.shape
        rows = filter.shape[0]
        if not (isinstance(D, int) and isinstance(rows, int) and D and rows and rows % D == 0):
            expect_sizes("filter", filter, {0: D}, f"'x' is {x}")
        if filter.shape[1] == 0 or S == 0:
            raise IRError(f"'x' is {x}, 'filter' is {filter}: expected at least 1 step and 1 tap")
        if history is not None:
            expect_rank("history", history, 3, "[B, D, P]")
            same_dtype(x=x, history=history)
            expect_sizes("history", history, {0: B, 1: D}, f"'x' is {x}")
        return (x.with_shape((B, rows, S)),)

    def evaluate(
        self, run: Run, x: Array, filter: Array, history: Array | None
    ) -> tuple[Array, ...]:
        seq = x if history is None else np.concatenate((history, x), axis=2)
        S, T = x.shape[2], seq.shape[2]
        wide = accumulator(run, x)
        seq = np.tile(seq.astype(wide, copy=False), (1, filter.shape[0] // max(x.shape[1], 1), 1))
        y = np.zeros((x.shape[0], filter.shape[0], S), wide)
        for tap in range(min(filter.shape[1], T)):
            # The outputs from `first` on reach a sample with this tap.
            first = max(0, tap - (T - S))
            y[:, :, first:] += filter[:, tap, None] * seq[:, :, T - S + first - tap : T - tap]
        return (y,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "four_step": decompose_four_step,
            "fft": decompose_fft,
            "conv": decompose_conv,
            "direct": decompose_direct,
        }

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        plain = [
            cls._example(rng, *sizes)
            for sizes in ((1, 3, 0), (1, 9, 6), (5, 2, 7), (63, 65, None), (65, 200, 3))
        ]
        return [*plain, *(cls._example(rng, S, 70, 9, copies=2) for S in (1, 5, 65))]

    @classmethod
    def _example(
        cls, rng: np.random.Generator, S: int, L: int, P: int | None, copies: int = 1
    ) -> Example:
        """Two rows of three channels; the filter fades as those of models do."""
        x, filter = rng.standard_normal((2, 3, S)), rng.standard_normal((3 * copies, L))
        history = None if P is None else rng.standard_normal((2, 3, P))
        return Example(cls(), (x, filter * np.exp(-np.arange(L) / 20), history))


OPS: tuple[type[OpDef], ...] = (LongConv,)
