"""The sLSTM cell of xLSTM (Beck et al. 2024, section 2.2 and appendix A.2) as an op of the IR.

B batch, S sequence, H heads, D width of a head; gates in the order input, forget, cell input,
output (i, f, z, o).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.types import FLOATS, TensorType
from seqmix_xlstm.slstm_scan import scan_slstm

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["FORGET_GATES", "LARGEST_EXPONENT", "Slstm"]

FORGET_GATES = ("sigmoid", "exp")

LARGEST_EXPONENT = 80.0
"""Above it the forget weight of an element without memory would be infinite, and 0 * inf NaN."""


@op
class Slstm(OpDef):
    """``c' = f c + i tanh(z~)``, ``n' = f n + i``, ``h' = sigmoid(o~) c' / n'`` per element.

    ``gates [B,S,H,4,D]`` are what the input gives to i~, f~, z~ and o~; ``recurrent [H,D,4,D]``
    (from, gate, to) adds ``h @ R`` to them, each head by itself; R may be narrower than they are.
    The states ``h``, ``c``, ``n``, ``m [B,H,D]`` start as zeros, and may be float32 beside 16-bit
    gates; all sums are float32 or wider. ``valid [B,S]`` is false at padding, which leaves the
    states as they are and gives 0. Results are ``y [B,S,H,D]``, all h, and the next states.

    ``forget`` says whether f is the sigmoid or the exponential of f~; i is always the exponential.
    Both are kept in range by m (equations 15 to 17): with ``l = log f``, ``m' = max(i~, l + m)``,
    ``i = exp(i~ - m')`` and ``f = exp(l + m - m')``. Where n and c are 0 nothing is remembered, so
    that ``m' = i~`` there, which depends on no other row. ``clip`` is of the backward pass: the
    gradient that reaches h through R is clipped to ``[-clip, clip]``; 0 leaves it as it is.
    """

    name = "xlstm.slstm"
    operands = ("gates", "recurrent", "h", "c", "n", "m", "valid?")
    results = ("y", "next_h", "next_c", "next_n", "next_m")
    forget: str = "sigmoid"
    clip: float = 10.0

    def infer(
        self,
        gates: TensorType,
        recurrent: TensorType,
        h: TensorType,
        c: TensorType,
        n: TensorType,
        m: TensorType,
        valid: TensorType | None,
    ) -> tuple[TensorType, ...]:
        self._check_attributes()
        B, S, H, D = _check_gates(gates)
        allowed = {gates.dtype, wider_dtype(gates.dtype)}
        expect_dtype("recurrent", recurrent, FLOATS if "f64" in allowed else FLOATS - {"f64"})
        expect_shape("recurrent", recurrent, (H, D, 4, D), f"'gates' is {gates}")
        same_dtype(h=h, c=c, n=n, m=m)
        for name, state in {"h": h, "c": c, "n": n, "m": m}.items():
            expect_dtype(name, state, allowed)
            expect_shape(name, state, (B, H, D), f"'gates' is {gates}")
        if valid is not None:
            expect_dtype("valid", valid, ("bool",))
            expect_shape("valid", valid, (B, S), f"'gates' is {gates}")
        return gates.with_shape((B, S, H, D)), h, c, n, m

    def evaluate(
        self,
        run: Run,
        gates: Array,
        recurrent: Array,
        h: Array,
        c: Array,
        n: Array,
        m: Array,
        valid: Array | None,
    ) -> tuple[Array, ...]:
        wide = np.result_type(accumulator(run, gates), h.dtype)
        states = np.stack([h, c, n, m]).astype(wide)
        B, S, H, _, D = gates.shape
        y = np.zeros((B, S, H, D), wide)
        for t in range(S):
            mixed = np.einsum("bhd,hdge->bhge", states[0], recurrent.astype(wide))
            new = self._step(gates[:, t] + mixed, *states[1:])
            here = np.full(B, True) if valid is None else valid[:, t]
            states = np.where(here[:, None, None], new, states)
            y[:, t] = np.where(here[:, None, None], new[0], 0)
        return y, *states

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"recurrent": self._recurrent}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        """Both forget gates, with and without padding, from a state and from none."""
        return [
            _example(cls(), rng, (2, 7, 3, 5), past=True),
            _example(cls("exp", 0.0), rng, (1, 5, 2, 3), past=True),
            _example(cls(clip=0.0), rng, (3, 9, 1, 6), past=True, padded=True),
            _example(cls("exp", 1e3), rng, (1, 1, 2, 4), past=True),
        ]

    def _check_attributes(self) -> None:
        if self.forget not in FORGET_GATES:
            known = " or ".join(map(repr, FORGET_GATES))
            raise IRError(f"forget is {self.forget!r}, expected {known}")
        if not self.clip >= 0:
            raise IRError(f"clip is {self.clip}, expected a limit above 0, or 0 for none")

    def _step(self, gates: Array, c: Array, n: Array, m: Array) -> Array:
        """The next h, c, n and m ``[4,B,H,D]`` from the whole pre-activations ``[B,H,4,D]``."""
        i, f, z, o = np.moveaxis(gates, 2, 0)
        log_f = -np.logaddexp(0, -f) if self.forget == "sigmoid" else f
        new_m = np.where((n == 0) & (c == 0), i, np.maximum(i, log_f + m))
        i = np.exp(i - new_m)
        f = np.exp(np.minimum(log_f + m - new_m, LARGEST_EXPONENT))
        c, n = f * c + i * np.tanh(z), f * n + i
        # The logistic function by tanh, which does not overflow.
        return np.stack([(1 + np.tanh(o / 2)) / 2 * c / n, c, n, new_m])

    def _recurrent(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """A loop over the tokens, one product with all heads and gates in each."""
        return scan_slstm(b, op, self.forget == "sigmoid")


def _check_gates(gates: TensorType) -> tuple[Size, Size, Size, Size]:
    """B, S, H and D; IRError when the gates are not four per element of a sequence."""
    expect_rank("gates", gates, 5, "[B, S, H, 4, D]")
    expect_dtype("gates", gates, FLOATS)
    B, S, H, G, D = gates.shape
    if G != 4:
        raise IRError(f"axis 3 of 'gates' ({gates}) is {G}, expected 4 (i, f, z, o)")
    if S == 0:
        raise IRError(f"'gates' is {gates}: there are no steps, expected at least one")
    return B, S, H, D


def _example(
    defn: Slstm,
    rng: np.random.Generator,
    sizes: tuple[int, int, int, int],
    past: bool,
    padded: bool = False,
) -> Example:
    B, S, H, D = sizes
    gates = rng.normal(size=(B, S, H, 4, D))
    recurrent = rng.normal(size=(H, D, 4, D)) / np.sqrt(D)
    h, c, m = (past * rng.normal(size=(B, H, D)) for _ in range(3))
    n = past * rng.uniform(1, 2, size=(B, H, D))
    valid = rng.uniform(size=(B, S)) < 0.6 if padded else None
    return Example(defn, (gates, recurrent, h, c, n, m, valid))
