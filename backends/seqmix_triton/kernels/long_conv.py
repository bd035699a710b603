"""Convolution with long filters as products of two-level Toeplitz blocks.

The outputs are cut into blocks of N. What block j of the sequence adds to block i of the outputs is
a Toeplitz matrix that depends on i - j alone: so one such matrix, made from the taps where it is
needed, serves a tile of M pairs of blocks, as one product of [M, N] and [N, N].

D channels, R filters (a multiple of D), S outputs, P samples before them, T samples, L taps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel

__all__ = ["LONG_CONV"]


@triton.jit(do_not_specialize=["D", "P", "S", "T", "L"])
def toeplitz_conv(
    x, taps, y, x_b, x_d, taps_b, taps_d, y_b, y_d, D, P, S, T, L,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``y[b, r, o] = sum_l taps[b, r, l] x[b, r % D, P + o - l]``; samples outside of x are 0.

    One program per tile of BLOCK_M * BLOCK_N outputs, filter, and row of the batch.
    """
    row, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    x += batch * x_b + row % D * x_d
    taps += batch * taps_b + row * taps_d
    y += batch * y_b + row * y_d
    place = tl.arange(0, BLOCK_N)
    first = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)) * BLOCK_N
    # The last output of the tile sees the furthest back.
    reach = tl.minimum(L - 1, P + (tl.program_id(0) + 1) * BLOCK_M * BLOCK_N - 1)
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for block in range(0, reach // BLOCK_N + 2):
        sample = P + first[:, None] - block * BLOCK_N + place[None, :]
        inside = (sample >= 0) & (sample < T)
        seen = tl.load(x + sample, mask=inside, other=0.0)
        lag = block * BLOCK_N + place[None, :] - place[:, None]
        known = (lag >= 0) & (lag < L)
        matrix = tl.load(taps + lag, mask=known, other=0.0)
        total = tl.dot(
            seen.to(DOT), matrix.to(DOT), total, input_precision=PRECISION, out_dtype=ACC
        )
    output = first[:, None] + place[None, :]
    tl.store(y + output, total.to(y.dtype.element_ty), mask=output < S)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    if dtype in (torch.float16, torch.bfloat16):
        return Config({"BLOCK_M": 64, "BLOCK_N": 64}, 4, 2)
    return Config({"BLOCK_M": 32, "BLOCK_N": 32}, 4, 2)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        Config({"BLOCK_M": m, "BLOCK_N": n}, warps, 2)
        for m in (16, 32, 64, 128)
        for n in (32, 64)
        for warps in (4, 8)
    ]


_STRIDES = ("x_b", "x_d", "taps_b", "taps_d", "y_b", "y_d")

LONG_CONV = Kernel(
    toeplitz_conv,
    {"x": "T", "taps": "T", "y": "T"}
    | dict.fromkeys(_STRIDES, "s")
    | dict.fromkeys(("D", "P", "S", "T", "L"), "i"),
    _default,
    (
        Case("16 bits", torch.bfloat16, {}),
        Case("32 bits", torch.float32, {}),
    ),
    _space,
)
