"""The mLSTM cell: a gated matrix memory with a normalizer and, for exponential gates, a stabiliser.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape, same_dtype
from seqmix_ir.types import FLOATS, TensorType
from seqmix_xlstm.mlstm_forms import LOWEST, attend, recur

__all__ = ["OPS", "Mlstm", "check_attributes"]


@op
class Mlstm(OpDef):
    """The mLSTM cell of xLSTM (Beck et al. 2024, equations 19 to 27), stabilised.

    With ``log f = logsigmoid(forget_gate)`` and i the input gate, for every head::

        m_t = max(log f_t + m_{t-1}, i_t)
        C_t = exp(log f_t + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) k_t v_t^T
        n_t = exp(log f_t + m_{t-1} - m_t) n_{t-1} + exp(i_t - m_t) k_t
        h_t = C_t^T q_t / (max(|n_t . q_t|, exp(-m_t)) + eps)

    ``q``, ``k [B,H,S,K]``, ``v [B,H,S,V]``, gates ``[B,H,S]`` before activation, ``state
    [B,H,K,V+1]`` (C with n as its last column), ``m [B,H]`` -> ``h [B,H,S,V]``, the next state and
    the next m. Both start as zeros; the state stands for ``state * exp(m)``.

    ``scale_on`` says whether q or k is multiplied by ``K**-0.5`` (with "k" the state holds scaled
    keys). ``input`` "sigmoid" squashes the input gate instead: then there is no stabiliser (m is
    handed on as given), and h is divided by ``max(|n_t . q_t|, 1)``, or by nothing when
    ``normalize`` is off. ``soft_cap`` c > 0 bounds both gates by ``c tanh(gate / c)``.

    Infinite gates are never capped: an input gate of -inf beside a forget gate of inf is padding,
    which changes neither state nor m; a forget gate of -inf forgets all. An m of -inf, "nothing
    yet", becomes -1e30 at the first token, as it could not be subtracted from itself. Gates and
    sums are float32 at least; state and m may be float32 beside 16-bit q, k and v. ``chunk`` is
    how many tokens are taken in at once where that is done: it changes speed and rounding only.
    """

    name = "xlstm.mlstm"
    operands = ("q", "k", "v", "input_gate", "forget_gate", "state", "m")
    results = ("h", "next_state", "next_m")
    scale_on: str = "q"
    input: str = "exp"
    eps: float = 1e-6
    soft_cap: float = 0.0
    normalize: bool = True
    chunk: int = 64

    @property
    def stabilised(self) -> bool:
        """Whether there is an m."""
        return self.input == "exp"

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        input_gate: TensorType,
        forget_gate: TensorType,
        state: TensorType,
        m: TensorType,
    ) -> tuple[TensorType, ...]:
        check_attributes(self)
        for name, type, layout in (("q", q, "[B, H, S, K]"), ("v", v, "[B, H, S, V]")):
            expect_rank(name, type, 4, layout)
        same_dtype(q=q, k=k, v=v)
        expect_dtype("q", q, FLOATS)
        B, H, S, K = q.shape
        V = v.shape[3]
        if S == 0:
            raise IRError(f"'q' is {q}: there is no token, expected at least one")
        expect_shape("k", k, q.shape, f"'q' is {q}")
        expect_shape("v", v, (B, H, S, V), f"'q' is {q}")
        for name, gate in (("input_gate", input_gate), ("forget_gate", forget_gate)):
            expect_dtype(name, gate, FLOATS)
            expect_shape(name, gate, (B, H, S), f"'q' is {q}")
        expect_shape("state", state, (B, H, K, V + 1), f"'k' is {k}, 'v' is {v} and 1 for n")
        expect_shape("m", m, (B, H), f"'q' is {q}")
        for name, type in (("state", state), ("m", m)):
            expect_dtype(name, type, {q.dtype, wider_dtype(q.dtype)})
        return v, state, m

    def evaluate(self, run: Run, *operands: Array) -> tuple[Array, ...]:
        """The recurrence, one token after the other."""
        wide = accumulator(run, operands[0])
        q, k, v, i, f, state, m = (x.astype(wide) for x in operands)
        scaled = {"q": q, "k": k}[self.scale_on]
        scaled *= q.shape[3] ** -0.5
        i, log_f = _capped(i, self.soft_cap), _log_sigmoid(_capped(f, self.soft_cap))
        stabilised = self.stabilised
        i = i if stabilised else _log_sigmoid(i)
        h = np.empty_like(v)
        for t in range(q.shape[2]):
            # Without a stabiliser m is 0 throughout.
            old = m if stabilised else np.zeros_like(m)
            new = np.maximum(log_f[:, :, t] + m, i[:, :, t]) if stabilised else old
            new = np.maximum(new, LOWEST)
            decay = np.exp(log_f[:, :, t] + old - new)[..., None, None]
            key = k[:, :, t] * np.exp(i[:, :, t] - new)[..., None]
            value = np.concatenate([v[:, :, t], np.ones_like(v[:, :, t, :1])], -1)
            state = state * decay + key[..., None] * value[:, :, None]
            h[:, :, t] = self._divided(np.einsum("bhk,bhkv->bhv", q[:, :, t], state), new)
            m = new if stabilised else m
        return h, state, m

    def _divided(self, y: Array, m: Array) -> Array:
        """``[B, H, V + 1]``, the last of it the normalizer's part, as h ``[B, H, V]``."""
        if not self.normalize:
            return y[..., :-1]
        eps = self.eps if self.stabilised else 0.0
        below: Array = np.maximum(np.abs(y[..., -1]), np.exp(-m)) + eps
        return y[..., :-1] / below[..., None]

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {
            "linear_attention": lambda b, op: attend(b, op, self),
            "recurrent": lambda b, op: recur(b, op, self),
        }

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        sigmoid = cls(scale_on="k", input="sigmoid", normalize=False, chunk=4)
        return [
            _example(cls(chunk=4), rng, (2, 3, 9, 5, 7)),
            _example(cls(scale_on="k", soft_cap=15.0), rng, (1, 2, 65, 6, 3)),
            _example(cls(), rng, (2, 1, 1, 4, 5)),
            _example(cls(input="sigmoid", soft_cap=2.0), rng, (1, 3, 1, 3, 4)),
            _example(sigmoid, rng, (1, 1, 7, 3, 2)),
        ]


def check_attributes(defn: Mlstm) -> None:
    """IRError unless every attribute, and what they say together, makes sense."""
    if defn.scale_on not in ("q", "k"):
        raise IRError(f"scale_on is {defn.scale_on!r}, expected 'q' or 'k'")
    if defn.input not in ("exp", "sigmoid"):
        raise IRError(f"input is {defn.input!r}, expected 'exp' or 'sigmoid'")
    if defn.stabilised and not defn.normalize:
        raise IRError(
            "normalize is off beside input 'exp': the stabiliser cancels in the division only; "
            "expected input 'sigmoid', or normalize on"
        )
    for name, value in (("eps", defn.eps), ("soft_cap", defn.soft_cap)):
        if not 0 <= value < np.inf:
            raise IRError(f"{name} is {value}, expected 0 or more")
    if defn.chunk < 1:
        raise IRError(f"chunk is {defn.chunk}, expected 1 or more")


def _log_sigmoid(x: Array) -> Array:
    y: Array = -np.logaddexp(-x, x.dtype.type(0))
    return y


def _capped(gate: Array, cap: float) -> Array:
    """``cap * tanh(gate / cap)``, infinities as they are."""
    return gate if not cap else np.where(np.isinf(gate), gate, cap * np.tanh(gate / cap))


def _example(defn: Mlstm, rng: np.random.Generator, sizes: tuple[int, ...]) -> Example:
    """Forget gates around 2, and a state from before that stays as wide as a state should."""
    B, H, S, K, V = sizes
    q, k, v = (rng.normal(size=(B, H, S, n)) for n in (K, K, V))
    gates = 2 * rng.normal(size=(B, H, S)), 2 + rng.normal(size=(B, H, S))
    state, m = rng.normal(size=(B, H, K, V + 1)), rng.normal(size=(B, H))
    return Example(defn, (q, k, v, *gates, state.astype(np.float32), m.astype(np.float32)))


OPS: tuple[type[OpDef], ...] = (Mlstm,)
