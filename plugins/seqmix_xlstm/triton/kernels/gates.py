"""The gates of the mLSTM cell within kernels, with the stabiliser, a recurrence over (max, +).

B batch, H heads, S sequence. ``STABLE`` says whether there is a stabiliser, ``CAP`` bounds both
gates where it is above 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel
from seqmix_xlstm.mlstm_forms import HIGHEST, LOWEST

__all__ = [
    "GATE_STRIDES",
    "MLSTM_GATES",
    "cap_slope",
    "capped",
    "divisor",
    "last_of",
    "preactivations",
    "stabilizer",
    "token_gates",
]

_LOWEST = tl.constexpr(LOWEST)
_HIGHEST = tl.constexpr(HIGHEST["f32"])
_HIGHEST_WIDE = tl.constexpr(HIGHEST["f64"])


@triton.jit
def _log1p(x):
    """``log(1 + x)`` for x from 0 to 1: ``2 atanh(x / (2 + x))`` by its series, to float64."""
    z = x / (2.0 + x)
    square = z * z
    found = tl.zeros_like(z)
    for term in tl.static_range(16):
        found = found * square + 1.0 / (31 - 2 * term)
    return 2.0 * z * found


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _tanh(x):
    """By exponentials; near 0, where they would cancel, by Lambert's continued fraction."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    near = tl.minimum(size, 0.5)
    square = near * near
    fraction = tl.zeros_like(x) + 17.0
    for level in tl.static_range(8):
        fraction = (15.0 - 2.0 * level) + square / fraction
    found = tl.where(size < 0.5, near / fraction, (1.0 - e) / (1.0 + e))
    return tl.where(x < 0, -found, found)


@triton.jit
def capped(gate, CAP: tl.constexpr):
    """``CAP * tanh(gate / CAP)``; infinities mark padding and stay."""
    if CAP > 0:
        gate = tl.where(tl.abs(gate) == float("inf"), gate, CAP * _tanh(gate / CAP))
    return gate


@triton.jit
def cap_slope(gate, CAP: tl.constexpr):
    """The derivative of the capped gate with respect to the gate as given."""
    bent = _tanh(gate / CAP)
    return 1.0 - bent * bent


@triton.jit
def preactivations(
    i, f, i_s, f_s, token, inside,
    STABLE: tl.constexpr, CAP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The logarithms of both gates of tokens; those not ``inside`` add and forget nothing."""
    token = token.to(tl.int64)
    log_i = tl.load(i + token * i_s, mask=inside, other=float("-inf")).to(ACC)
    log_f = tl.load(f + token * f_s, mask=inside, other=float("inf")).to(ACC)
    log_i, log_f = capped(log_i, CAP), capped(log_f, CAP)
    if not STABLE:
        log_i = _log_sigmoid(log_i)
    return log_i, _log_sigmoid(log_f)


@triton.jit
def _then_max(a, b, later_a, later_b):
    """``m -> max(a + m, b)`` and after it ``m -> max(later_a + m, later_b)``, as one such map."""
    return a + later_a, tl.maximum(b + later_a, later_b)


@triton.jit
def stabilizer(
    i, f, i_s, f_s, first, place, count,
    STABLE: tl.constexpr, CAP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Of a tile of ``count`` tokens: log gates, and the stabiliser before and after each.

    ``first`` is the one before the tile. Tokens beyond the tile hand it on; without a stabiliser
    it is 0.
    """
    log_i, log_f = preactivations(i, f, i_s, f_s, place, place < count, STABLE, CAP, ACC)
    if STABLE:
        earlier = (place > 0) & (place <= count)
        added, kept = preactivations(i, f, i_s, f_s, place - 1, earlier, STABLE, CAP, ACC)
        kept, added = tl.associative_scan((kept, added), 0, _then_max)
        lowest = tl.full([1], _LOWEST, ACC)
        before = tl.maximum(tl.maximum(kept + first, added), lowest)
        before = tl.where(place == 0, first, before)
        now = tl.maximum(tl.maximum(log_f + before, log_i), lowest)
    else:
        before, now = tl.zeros_like(log_i), tl.zeros_like(log_i)
    return log_i, log_f, before, now


@triton.jit
def token_gates(
    i, f, i_s, f_s, first, STABLE: tl.constexpr, CAP: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Of a single token, as tiles of one: the log of decay and weight, and the stabiliser."""
    place = tl.arange(0, 1)
    log_i, log_f = preactivations(i, f, i_s, f_s, place, place == 0, STABLE, CAP, ACC)
    now = tl.zeros_like(log_i)
    if STABLE:
        log_f += first
        now = tl.maximum(tl.maximum(log_f, log_i), tl.full([1], _LOWEST, ACC))
    return log_f - now, log_i - now, now


@triton.jit
def divisor(reads, track, STABLE: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr):
    """``max(|n . q|, exp(-m)) + eps``, or ``max(|n . q|, 1)``; and what n . q is compared with.

    ``exp(-m)`` stays finite: where it would overflow, h is 0 all the same.
    """
    floor = tl.zeros_like(reads) + 1.0
    if STABLE:
        highest = _HIGHEST_WIDE if tl.float64 == ACC else _HIGHEST
        floor = tl.exp(tl.minimum(-track, highest))
    below = tl.maximum(tl.abs(reads), floor)
    if STABLE:
        below += EPS
    return below, floor


@triton.jit
def last_of(tile, place, L: tl.constexpr):
    """The last entry of a tile."""
    return tl.sum(tl.where(place == L - 1, tile, 0.0), 0)


@triton.jit(do_not_specialize=["S", "H"])
def mlstm_gates(
    i, f, m, decay, weight, track, i_b, i_h, i_s, f_b, f_h, f_s, H, S,
    STABLE: tl.constexpr, CAP: tl.constexpr, ACC: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A program per head: the logs of decay and weight, and the stabiliser, ``[B, H, S]``."""
    head = tl.program_id(0).to(tl.int64)
    i += head // H * i_b + head % H * i_h
    f += head // H * f_b + head % H * f_h
    place = tl.arange(0, BLOCK_S)
    first = tl.load(m + head).to(ACC)
    for start in range(0, S, BLOCK_S):
        begin = tl.cast(start, tl.int64)
        count = S - start
        log_i, log_f, before, now = stabilizer(
            i + begin * i_s, f + begin * f_s, i_s, f_s, first, place, count, STABLE, CAP, ACC
        )  # fmt: skip
        to = head * S + begin + place
        tl.store(decay + to, log_f + before - now, mask=place < count)
        tl.store(weight + to, log_i - now, mask=place < count)
        tl.store(track + to, now, mask=place < count)
        first = last_of(now, place, BLOCK_S)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_S": 256}, 4, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        Config({"BLOCK_S": size}, warps, 1) for size in (128, 256, 512, 1024) for warps in (2, 4, 8)
    ]


GATE_STRIDES = {f"{gate}_{axis}": "s" for gate in "if" for axis in "bhs"}

MLSTM_GATES = Kernel(
    mlstm_gates,
    {
        **{name: "A" for name in ("i", "f", "m", "decay", "weight", "track")},
        **GATE_STRIDES, "H": "i", "S": "i",
    },
    _default,
    (
        Case("exp", torch.bfloat16, {"STABLE": True, "CAP": 0.0}),
        Case("sigmoid capped", torch.bfloat16, {"STABLE": False, "CAP": 15.0}),
    ),
    _space,
)  # fmt: skip
