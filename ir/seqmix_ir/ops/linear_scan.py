"""First-order recurrences along the sequence, elementwise, over two semirings.

B batch, S sequence, D channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.linear_scan_pairs import SEMIRINGS, decompose_linear_scan
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.types import FLOATS, TensorType

__all__ = ["OPS", "LinearScan"]


@op
class LinearScan(OpDef):
    """``h[t] = a[t] * h[t-1] + b[t]``, or over (max, +) ``h[t] = max(a[t] + h[t-1], b[t])``.

    ``a``, ``b [B,S,D]`` with S from 1, ``initial [B,D]`` is h before the first step -> ``h
    [B,S,D]`` and the ``last`` of them. ``semiring`` is "plus_times" or "max_plus". h is kept in
    float32 at least and rounded where it leaves; ``initial`` and ``last`` may have that wider
    dtype while ``a`` and ``b`` are narrow, so that a state loses nothing between calls.

    In (max, +) ``b`` and ``initial`` may be -inf, "nothing yet". The decompositions other than
    "recurrent" multiply (add) neighbouring ``a`` first: those products must not overflow.
    """

    name = "linear_scan"
    operands = ("a", "b", "initial")
    results = ("h", "last")
    semiring: str = "plus_times"

    def infer(
        self, a: TensorType, b: TensorType, initial: TensorType
    ) -> tuple[TensorType, TensorType]:
        if self.semiring not in SEMIRINGS:
            known = " or ".join(map(repr, SEMIRINGS))
            raise IRError(f"semiring is {self.semiring!r}, expected {known}")
        expect_rank("a", a, 3, "[B, S, D]")
        same_dtype(a=a, b=b)
        expect_dtype("a", a, FLOATS)
        expect_shape("b", b, a.shape, f"'a' is {a}")
        B, S, D = a.shape
        if S == 0:
            raise IRError(f"'a' is {a}: the scan has no steps, expected at least one")
        expect_dtype("initial", initial, (a.dtype, wider_dtype(a.dtype)))
        expect_shape("initial", initial, (B, D), f"'a' is {a}")
        return a, initial

    def evaluate(self, run: Run, a: Array, b: Array, initial: Array) -> tuple[Array, ...]:
        wide = np.result_type(accumulator(run, a), initial.dtype)
        state = initial.astype(wide)
        h = np.empty(a.shape, wide)
        for t in range(a.shape[1]):
            if self.semiring == "max_plus":
                state = np.maximum(a[:, t] + state, b[:, t])
            else:
                state = a[:, t] * state + b[:, t]
            h[:, t] = state
        return h, state

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "chunkwise": lambda b, op: decompose_linear_scan(b, op, self.semiring, 1),
            "parallel": lambda b, op: decompose_linear_scan(b, op, self.semiring, 3),
            "recurrent": lambda b, op: decompose_linear_scan(b, op, self.semiring, 0),
        }

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [
            cls._example(rng, semiring, length)
            for semiring, length in (("plus_times", 1), ("plus_times", 67), ("max_plus", 5))
        ] + [cls._example(rng, "max_plus", 131, start=-np.inf)]

    @classmethod
    def _example(
        cls, rng: np.random.Generator, semiring: str, length: int, start: float = 0.0
    ) -> Example:
        """Two rows of three channels; decays in (0, 1), in log space for (max, +)."""
        decay = rng.uniform(0.3, 1.0, (2, length, 3))
        b = rng.standard_normal((2, length, 3))
        if semiring == "max_plus":
            decay = np.log(decay)
            b[:, 1::3] = -np.inf
        return Example(cls(semiring), (decay, b, start + rng.standard_normal((2, 3))))


OPS: tuple[type[OpDef], ...] = (LinearScan,)
