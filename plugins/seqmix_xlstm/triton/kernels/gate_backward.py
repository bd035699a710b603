"""The gradients of the gates of the mLSTM cell and of its first stabiliser.

B batch, H heads, S sequence; N chunks of C tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel
from seqmix_xlstm.triton.kernels.gates import (
    GATE_STRIDES,
    cap_slope,
    capped,
    preactivations,
)

__all__ = ["MLSTM_GATE_SLOPE"]


@triton.jit
def _then_linear(a, b, later_a, later_b):
    """``x -> a x + b`` and after it ``x -> later_a x + later_b``, as one such map."""
    return a * later_a, b * later_a + later_b


@triton.jit
def _from_behind(factor, added, carry):
    """Of each token ``added`` and ``factor`` times what the next one has, ``carry`` at the end."""
    factor, added = tl.associative_scan((factor, added), 0, _then_linear, reverse=True)
    return factor * carry + added


@triton.jit
def _sigmoid_of_negative(x):
    """``1 - sigmoid(x)``, the derivative of ``log(sigmoid(x))``."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x > 0, e, 1.0) / (1.0 + e)


@triton.jit
def _summed(pointer, token, inside, stride, PARTS: tl.constexpr, ACC: tl.constexpr):
    """Shares, added up."""
    found = tl.zeros_like(token).to(ACC)
    for part in range(PARTS):
        found += tl.load(pointer + part * stride + token, mask=inside, other=0.0)
    return found


@triton.jit(do_not_specialize=["S", "N", "H"])
def mlstm_gate_slope(
    of_queries, of_keys, edge, of_m, decay, track, i, f, m, last_m_grad, di, df, dm,
    i_b, i_h, i_s, f_b, f_h, f_s, H, S, N,
    C: tl.constexpr, QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr, EDGE_PARTS: tl.constexpr,
    STABLE: tl.constexpr, CAP: tl.constexpr, ACC: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A program per head, from the last token to the first.

    The gradient of a decay is a sum over its chunk from there on, as ``edge`` holds all beyond. An
    m is handed on to the next one where ``log f + m`` won, to the input gate else.
    """
    head, heads = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    i += head // H * i_b + head % H * i_h
    f += head // H * f_b + head % H * f_h
    place = tl.arange(0, BLOCK_S)
    tokens, chunks = heads.to(tl.int64) * S, heads.to(tl.int64) * N
    zero = tl.zeros([1], ACC)
    sums, gained_m = zero, zero
    first = tl.load(m + head).to(ACC)
    of_last_m = tl.load(last_m_grad + head).to(ACC)
    blocks = tl.cdiv(S, BLOCK_S)
    for back in range(blocks):
        start = (blocks - 1 - back) * BLOCK_S
        token = start + place
        row = token.to(tl.int64)
        inside = token < S
        at = head * S + token
        of_weight = _summed(of_keys, at, inside, tokens, KEY_PARTS, ACC)
        gained = _summed(of_queries, at, inside, tokens, QUERY_PARTS, ACC) - of_weight
        ends = inside & (((token + 1) % C == 0) | (token == S - 1))
        beyond = _summed(edge, head * N + token // C, ends, chunks, EDGE_PARTS, ACC)
        # Beyond the last token all is handed on as it is, which is nothing.
        found = _from_behind(tl.where(ends, 0.0, 1.0).to(ACC), gained + beyond, sums)
        sums = tl.sum(tl.where(place == 0, found, 0.0), 0) + zero
        log_decay = tl.load(decay + at, mask=inside, other=0.0)
        found = tl.where(log_decay == float("-inf"), 0.0, found)
        log_i, log_f = preactivations(i, f, i_s, f_s, token, inside, STABLE, CAP, ACC)
        if STABLE:
            before = tl.load(track + at - 1, mask=inside & (token > 0), other=0.0)
            before = tl.where(token == 0, first, before)
            won = tl.where(log_f + before > log_i, 1.0, 0.0).to(ACC)
            # The same of the next token.
            known = tl.load(track + at, mask=inside, other=0.0)
            next_i, next_f = preactivations(
                i, f, i_s, f_s, token + 1, token + 1 < S, STABLE, CAP, ACC
            )  # fmt: skip
            passes = tl.where((token + 1 >= S) | (next_f + known > next_i), 1.0, 0.0).to(ACC)
            slope = tl.load(of_m + at, mask=inside, other=0.0)
            slope += tl.where(token == S - 1, of_last_m - beyond, 0.0)
            total = _from_behind(passes, slope, gained_m)
            gained_m = tl.sum(tl.where(place == 0, total, 0.0), 0) + zero
            kept = won * total
            found += kept
            of_weight += total - kept
            to = dm + head + tl.zeros_like(place)
            tl.store(to, found.to(dm.dtype.element_ty), mask=token == 0)
        else:
            raw = tl.load(i + row * i_s, mask=inside, other=0.0).to(ACC)
            of_weight *= _sigmoid_of_negative(capped(raw, CAP))
            to = dm + head + tl.zeros_like(place)
            tl.store(
                to, (of_last_m + tl.zeros_like(found)).to(dm.dtype.element_ty), mask=token == 0
            )
        raw = tl.load(f + row * f_s, mask=inside, other=0.0).to(ACC)
        found *= _sigmoid_of_negative(capped(raw, CAP))
        if CAP > 0:
            found *= cap_slope(raw, CAP)
            of_weight *= cap_slope(tl.load(i + row * i_s, mask=inside, other=0.0).to(ACC), CAP)
        tl.store(df + at, found.to(df.dtype.element_ty), mask=inside)
        tl.store(di + at, of_weight.to(di.dtype.element_ty), mask=inside)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_S": 256}, 4, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        Config({"BLOCK_S": size}, warps, 1) for size in (128, 256, 512, 1024) for warps in (2, 4, 8)
    ]


_PARTS = {"QUERY_PARTS": 2, "KEY_PARTS": 2, "EDGE_PARTS": 4}

MLSTM_GATE_SLOPE = Kernel(
    mlstm_gate_slope,
    {
        **{name: "A" for name in ("of_queries", "of_keys", "edge", "of_m", "decay", "track")},
        **{name: "A" for name in ("i", "f", "m", "last_m_grad", "di", "df", "dm")},
        **GATE_STRIDES, "H": "i", "S": "i", "N": "i",
    },
    _default,
    (
        Case("exp", torch.bfloat16, {"C": 64, **_PARTS, "STABLE": True, "CAP": 0.0}),
        Case("sigmoid capped", torch.bfloat16, {"C": 64, **_PARTS, "STABLE": False, "CAP": 15.0}),
    ),
    _space,
)  # fmt: skip
