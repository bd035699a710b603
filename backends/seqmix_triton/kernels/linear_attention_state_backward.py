"""The gradients of linear attention that pass from chunk to chunk: of the states, and the decays.

Sizes and ``DECAY`` are those of :mod:`seqmix_triton.kernels.linear_attention_tiles`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two
from seqmix_triton.kernels.linear_attention_tiles import CASES, default, rows, space, total, upto

__all__ = ["CHUNK_DECAY_SLOPE", "CHUNK_STATE_SLOPE"]


@triton.jit(do_not_specialize=["S", "N"])
def chunk_state_slope(
    grad, q, g, before, last, last_grad, behind, first, edge, q_b, q_h, q_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the state after each chunk, ``behind``, and that of the first state.

    ``edge`` is its product with that state, summed over a tile of values: for the decays.
    """
    head = tl.program_id(2).to(tl.int64)
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    value = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    q += head // H * q_b + head % H * q_h
    own = (key < K)[:, None] & (value < V)[None, :]
    at = key[:, None] * V + value[None, :]
    carry = tl.load(last_grad + head * (K * V) + at, mask=own, other=0.0).to(ACC)
    for m in range(N):
        n = N - 1 - m
        tl.store(behind + (head * N + n) * (K * V) + at, carry, mask=own)
        if DECAY > 0:
            ends = at * 0 + m == 0
            onward = before + (head * N + n + 1) * (K * V) + at
            reached = tl.load(onward, mask=own & (ends == 0), other=0.0)
            final = last + head * (K * V) + at
            reached += tl.load(final, mask=own & ends, other=0.0).to(ACC)
            to = edge + ((tl.program_id(1) * tl.num_programs(2) + head) * N + n) * K + key
            tl.store(to, tl.sum(carry * reached, 1), mask=key < K)
        length = tl.minimum(S - n * C, C)
        tiles = tl.cdiv(length, L)
        for i in range(tiles):
            tile = (tiles - 1 - i) * L
            begin = tl.cast(n, tl.int64) * C + tile
            count = length - tile
            queries = rows(q + begin * q_s, q_s, place, count, key, K)
            slope = rows(grad + (head * S + begin) * V, V, place, count, value, V).to(DOT)
            if DECAY > 0:
                decay = g + (head * S + begin) * (K if DECAY == 2 else 1)
                left = upto(decay, place, count, key, K, DECAY, ACC)
                queries = queries.to(ACC) * tl.exp(left)
                carry *= tl.exp(total(decay, place, count, key, K, DECAY, ACC))[:, None]
            carry = tl.dot(
                tl.trans(queries.to(DOT)), slope, carry, input_precision=PRECISION, out_dtype=ACC
            )
    tl.store(first + head * (K * V) + at, carry.to(first.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["S", "N"])
def chunk_decay_slope(
    of_queries, of_keys, edge, g, dg, S, N,
    C: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of the decays of a chunk: its shares summed from behind, ``WIDTH`` per token.

    A decay to 0 passes nothing on.
    """
    head = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    place = tl.arange(0, BLOCK_C)
    count = tl.minimum(S - n * C, C)
    begin = (head * S + n.to(tl.int64) * C) * WIDTH
    gained = rows(of_queries + begin, WIDTH, place, count, column, WIDTH)
    gained -= rows(of_keys + begin, WIDTH, place, count, column, WIDTH)
    end = tl.load(edge + (head * N + n) * WIDTH + column, mask=column < WIDTH, other=0.0)
    gained += tl.where((place == count - 1)[:, None], end[None, :], 0.0)
    found = tl.cumsum(gained, 0, reverse=True)
    decay = rows(g + begin, WIDTH, place, count, column, WIDTH)
    found = tl.where(decay == float("-inf"), 0.0, found)
    mask = (place < count)[:, None] & (column < WIDTH)[None, :]
    to = dg + begin + place[:, None] * WIDTH + column[None, :]
    tl.store(to, found.to(dg.dtype.element_ty), mask=mask)


def _default_decay(dtype: torch.dtype, constants: Constants) -> Config:
    rows = power_of_two(constants["C"])
    # Triton 3.6 cannot scan a tile that is one column wide.
    width = min(max(2, 1024 // rows), power_of_two(constants["WIDTH"], 2))
    return Config({"BLOCK_C": rows, "BLOCK_W": width}, 4, 1)


CHUNK_STATE_SLOPE = Kernel(
    chunk_state_slope,
    {
        "grad": "T", "q": "T", "g": "A", "before": "A", "last": "A", "last_grad": "A",
        "behind": "A", "first": "A", "edge": "A", "q_b": "s", "q_h": "s", "q_s": "s",
        "H": "i", "S": "i", "N": "i",
    },
    default,
    CASES,
    space,
    counted=("BLOCK_V",),
)  # fmt: skip
CHUNK_DECAY_SLOPE = Kernel(
    chunk_decay_slope,
    {
        "of_queries": "A", "of_keys": "A", "edge": "A", "g": "A", "dg": "A", "S": "i", "N": "i",
    },
    _default_decay,
    (
        Case("per head", torch.bfloat16, {"C": 64, "WIDTH": 1}),
        Case("per channel", torch.bfloat16, {"C": 16, "WIDTH": 64}),
    ),
)  # fmt: skip
