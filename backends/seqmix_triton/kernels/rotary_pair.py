"""Rotation of queries and keys in one launch, by given tables or by ones made on the way.

B batch, H query heads, G key heads, S queries, T keys, K head size, R rotated size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = ["ROTARY_PAIR"]


@triton.jit
def _cos_sin(angle, ACC: tl.constexpr):
    """Both of float64 angles, in the dtype of the sums, to its last digits.

    An angle is taken apart into quarter turns and a rest of at most an eighth, by two parts of
    pi / 2 the first of which has few enough digits for an exact product; the rest by its series.
    """
    quarter = tl.floor(angle * 0.6366197723675814 + 0.5)
    rest = angle - quarter * 1.57079632673412561417
    rest = (rest - quarter * 6.07710050650619224932e-11).to(ACC)
    which = quarter.to(tl.int64) & 3
    square = rest * rest
    sine, cosine = tl.zeros_like(rest) + 1.0, tl.zeros_like(rest) + 1.0
    for term in tl.static_range(9):
        cosine = 1.0 - square * (1.0 / ((17 - 2 * term) * (18 - 2 * term))) * cosine
        sine = 1.0 - square * (1.0 / ((18 - 2 * term) * (19 - 2 * term))) * sine
    sine *= rest
    odd = (which & 1) == 1
    c, s = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    return tl.where((which == 1) | (which == 2), -c, c), tl.where(which >= 2, -s, s)


@triton.jit
def _turn(
    x, y, positions, inv_freq, factor, cos, sin, x_b, x_h, x_s, freq_b, factor_b, b, block, heads,
    S, H, K: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, MADE: tl.constexpr,
    SCALED: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Turn a block of tokens of the heads from ``heads`` on; they share their tables."""
    token = block * BLOCK_S + tl.arange(0, BLOCK_S)
    pair = tl.arange(0, BLOCK_P)
    row = token.to(tl.int64)
    inside = (token < S)[:, None] & (pair < HALF)[None, :]
    if MADE:
        place = tl.load(positions + b * S + row, mask=token < S, other=0)
        # Padding is turned by nothing.
        place = tl.maximum(place, 0).to(tl.float64)
        speed = tl.load(inv_freq + b * freq_b + pair, mask=pair < HALF, other=0.0)
        c, s = _cos_sin(place[:, None] * speed[None, :], ACC)
        if SCALED:
            by = tl.load(factor + b * factor_b).to(ACC)
            c, s = c * by, s * by
    else:
        table = (b * S + row)[:, None] * HALF + pair[None, :]
        c = tl.load(cos + table, mask=inside, other=0.0).to(ACC)
        s = tl.load(sin + table, mask=inside, other=0.0).to(ACC)
    left = 2 * pair if INTERLEAVED else pair
    right = left + (1 if INTERLEAVED else HALF)
    out = y.dtype.element_ty
    for h in range(heads, tl.minimum(heads + HEADS, H)):
        source = x + b * x_b + tl.cast(h, tl.int64) * x_h + row[:, None] * x_s
        target = y + ((b * H + h) * S + row)[:, None] * K
        first = tl.load(source + left[None, :], mask=inside, other=0.0).to(ACC)
        second = tl.load(source + right[None, :], mask=inside, other=0.0).to(ACC)
        tl.store(target + left[None, :], (first * c - second * s).to(out), mask=inside)
        tl.store(target + right[None, :], (second * c + first * s).to(out), mask=inside)
        if K > 2 * HALF:
            rest = 2 * HALF + tl.arange(0, BLOCK_R)[None, :]
            kept = (token < S)[:, None] & (rest < K)
            tl.store(target + rest, tl.load(source + rest, mask=kept, other=0.0), mask=kept)


@triton.jit(do_not_specialize=["S", "T", "H", "G", "freq_b", "factor_b"])
def rotary_pair(
    q, k, q_out, k_out, q_positions, k_positions, inv_freq, factor, cos, sin,
    q_b, q_h, q_s, k_b, k_h, k_s, freq_b, factor_b, S, T, H, G,
    K: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, MADE: tl.constexpr,
    SCALED: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A program per block of tokens and few heads: first those of the queries, then of the keys."""
    b = tl.program_id(2).to(tl.int64)
    heads = tl.program_id(1) * HEADS
    block = tl.program_id(0)
    blocks = tl.cdiv(S, BLOCK_S)
    if block < blocks:
        if heads < H:
            _turn(
                q, q_out, q_positions, inv_freq, factor, cos, sin, q_b, q_h, q_s, freq_b,
                factor_b, b, block, heads, S, H, K, HALF, INTERLEAVED, MADE, SCALED, ACC, HEADS,
                BLOCK_S, BLOCK_P, BLOCK_R,
            )  # fmt: skip
    else:
        if heads < G:
            _turn(
                k, k_out, k_positions, inv_freq, factor, cos, sin, k_b, k_h, k_s, freq_b,
                factor_b, b, block - blocks, heads, T, G, K, HALF, INTERLEAVED, MADE, SCALED, ACC,
                HEADS, BLOCK_S, BLOCK_P, BLOCK_R,
            )  # fmt: skip


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return _config(constants, max(1, min(16, 1024 // power_of_two(constants["HALF"]))), 4, 4)


def _config(constants: Constants, tokens: int, heads: int, warps: int) -> Config:
    pairs = power_of_two(constants["HALF"])
    rest = power_of_two(constants["K"] - 2 * constants["HALF"])
    tiles = {"HEADS": heads, "BLOCK_S": tokens, "BLOCK_P": pairs, "BLOCK_R": rest}
    return Config(tiles, warps, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        _config(constants, tokens, heads, warps)
        for tokens in (4, 8, 16, 32)
        for heads in (1, 4, 8)
        for warps in (2, 4, 8)
    ]


_HEAD = {"K": 128, "HALF": 64, "INTERLEAVED": False, "MADE": True, "SCALED": True}

ROTARY_PAIR = Kernel(
    rotary_pair,
    {
        "q": "T", "k": "T", "q_out": "T", "k_out": "T", "q_positions": "I", "k_positions": "I",
        "inv_freq": "D", "factor": "D", "cos": "A", "sin": "A",
        **{f"{name}_{axis}": "s" for name in "qk" for axis in "bhs"},
        "freq_b": "i", "factor_b": "i", "S": "i", "T": "i", "H": "i", "G": "i",
    },
    _default,
    (
        Case("128 made", torch.bfloat16, _HEAD),
        Case("128 given", torch.bfloat16, {**_HEAD, "MADE": False, "SCALED": False}),
        Case(
            "64 of 80 interleaved",
            torch.bfloat16,
            {"K": 80, "HALF": 32, "INTERLEAVED": True, "MADE": True, "SCALED": False},
        ),
    ),
    _space,
)  # fmt: skip
