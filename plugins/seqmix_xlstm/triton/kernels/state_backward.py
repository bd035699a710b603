"""The gradients of the mLSTM cell that are found first: through its division, and of its states.

Sizes are those of :mod:`seqmix_xlstm.triton.kernels.forward`.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Config, Constants, Kernel
from seqmix_triton.kernels.linear_attention_tiles import (
    after,
    between,
    default_rows,
    rows,
    space,
    total,
    upto,
)
from seqmix_xlstm.triton.kernels.gates import divisor
from seqmix_xlstm.triton.kernels.tiles import (
    before_chunk,
    cases_of,
    default_states,
    factors,
    normalizer,
    state_tile,
)

__all__ = ["MLSTM_DIVISION_SLOPE", "MLSTM_STATE_SLOPE"]


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_division_slope(
    grad, h, q, k, decay, weight, track, state, states, inverse, reads, of_m,
    q_b, q_h, q_s, k_b, k_h, k_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    SCALE_K: tl.constexpr, STABLE: tl.constexpr, EPS: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """1 by the divisor, the gradient of ``n . q`` times the divisor, that of m; per tile of rows.

    The divisor is a larger one of two: its gradient goes to ``|n . q|`` where that won. m enters h
    by eps alone, as all else cancels in the division.
    """
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    TILES: tl.constexpr = (C + L - 1) // L
    n, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + tile * L
    count = tl.minimum(tl.minimum(S - n * C, C) - tile * L, L)
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h + begin * q_s
    k += head // H * k_b + head % H * k_h
    decay += head * S
    weight += head * S
    known = before_chunk(state, states, head, heads, n, K * (V + 1))
    own = tl.zeros([L, L], ACC)
    found = tl.zeros([L], ACC)
    for part in tl.static_range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        queries = rows(q, q_s, place, count, key, K)
        keys = rows(k + begin * k_s, k_s, place, count, key, K)
        own = tl.dot(
            queries.to(DOT), tl.trans(keys.to(DOT)), own, input_precision=PRECISION, out_dtype=ACC
        )  # fmt: skip
        # Beyond the tile it is one vector that queries are multiplied with: the sum of keys.
        norm = normalizer(known, key, key < K, V)
        for earlier in range(tile):
            other = start + earlier * L
            left = after(decay + other, place, L, key, L, K, 1, ACC)
            counts = left + factors(weight + other, place, L)[:, None]
            past = rows(k + other * k_s, k_s, place, L, key, K)
            norm *= tl.exp(total(decay + other, place, L, key, K, 1, ACC))
            norm += tl.sum(past.to(ACC) * (tl.exp(counts) * SCALE_K), 0)
        reached = upto(decay + begin, place, count, key, K, 1, ACC)
        queries = queries.to(ACC) * (tl.exp(reached) * SCALE_Q)
        found += tl.sum(queries * norm[None, :], 1)
    counts = tl.exp(factors(weight + begin, place, count)) * (SCALE_Q * SCALE_K)
    own *= between(decay + begin, place, count, 1, ACC) * counts[None, :]
    found += tl.sum(own, 1)
    token = head * S + begin
    below, floor = divisor(found, factors(track + token, place, count), STABLE, EPS, ACC)
    along = tl.zeros([L], ACC)
    for part in range(0, V, BLOCK_V):
        value = part + tl.arange(0, BLOCK_V)
        slope = rows(grad + token * V, V, place, count, value, V).to(ACC)
        along += tl.sum(slope * rows(h + token * V, V, place, count, value, V).to(ACC), 1)
    sign = tl.where(found < 0, -1.0, 1.0)
    mask = place < count
    tl.store(inverse + token + place, 1.0 / below, mask=mask)
    tl.store(reads + token + place, tl.where(tl.abs(found) > floor, -along * sign, 0.0), mask=mask)
    if STABLE:
        tl.store(of_m + token + place, along / below * -EPS, mask=mask)


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_state_slope(
    grad, q, decay, inverse, reads, states, last, last_grad, behind, first, edge,
    q_b, q_h, q_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    NORMALIZE: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the state after each chunk, ``behind``, and that of the first state.

    ``edge [tiles, B, H, N]`` is its product with that state, over one tile of it: for the decays.
    """
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    value = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    q += head // H * q_b + head % H * q_h
    own = (key < K)[:, None] & (value < V)[None, :]
    summed = (key < K) & (key * 0 + tl.program_id(1) == 0)
    at = key[:, None] * (V + 1) + value[None, :]
    size: tl.constexpr = K * (V + 1)
    part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    edge += (part * heads + head) * N
    last += head * size
    carry = state_tile(last_grad + head * size, key, value, own, V).to(ACC)
    norm = normalizer(last_grad + head * size, key, summed, V).to(ACC)
    for back in range(N):
        n = N - 1 - back
        place_of = (tl.cast(n, tl.int64) * heads + head) * size
        tl.store(behind + place_of + at, carry, mask=own)
        tl.store(behind + place_of + key * (V + 1) + V, norm, mask=summed)
        onward = states + place_of
        reached = state_tile(onward, key, value, own & (back > 0), V).to(ACC)
        reached += state_tile(last, key, value, own & (back == 0), V).to(ACC)
        beside = normalizer(onward, key, summed & (back > 0), V).to(ACC)
        beside += normalizer(last, key, summed & (back == 0), V).to(ACC)
        tl.store(edge + n, tl.sum(tl.sum(carry * reached, 1) + norm * beside, 0))
        length = tl.minimum(S - n * C, C)
        tiles = tl.cdiv(length, L)
        for i in range(tiles):
            tile = (tiles - 1 - i) * L
            begin = tl.cast(n, tl.int64) * C + tile
            count = tl.minimum(length - tile, L)
            token = head * S + begin
            left = upto(decay + token, place, count, key, K, 1, ACC)
            queries = rows(q + begin * q_s, q_s, place, count, key, K)
            queries = queries.to(ACC) * (tl.exp(left) * SCALE_Q)
            slope = rows(grad + token * V, V, place, count, value, V)
            kept = tl.exp(total(decay + token, place, count, key, K, 1, ACC))
            norm *= kept
            if NORMALIZE:
                # Half of it each, as a narrow type might not hold the whole.
                half = tl.sqrt(factors(inverse + token, place, count))[:, None]
                queries, slope = queries * half, slope.to(ACC) * half
                through = factors(reads + token, place, count)[:, None] * half
                norm += tl.sum(queries * through, 0)
            carry = tl.dot(
                tl.trans(queries.to(DOT)), slope.to(DOT), carry * kept[:, None],
                input_precision=PRECISION, out_dtype=ACC,
            )  # fmt: skip
    out = first.dtype.element_ty
    tl.store(first + head * size + at, carry.to(out), mask=own)
    tl.store(first + head * size + key * (V + 1) + V, norm.to(out), mask=summed)


def _default_slope(dtype: torch.dtype, constants: Constants) -> Config:
    """Narrower than a pass forward: two states are held at once, and half of the slopes."""
    config = default_states(dtype, constants)
    return dataclasses.replace(
        config, tiles={**config.tiles, "BLOCK_V": min(32, config.tiles["BLOCK_V"])}
    )


_SIZES = {"H": "i", "S": "i", "N": "i"}
_Q = {"q_b": "s", "q_h": "s", "q_s": "s"}

MLSTM_DIVISION_SLOPE = Kernel(
    mlstm_division_slope,
    {
        "grad": "T", "h": "T", "q": "T", "k": "T", "decay": "A", "weight": "A", "track": "A",
        "state": "A", "states": "A", "inverse": "A", "reads": "A", "of_m": "A",
        **_Q, "k_b": "s", "k_h": "s", "k_s": "s", **_SIZES,
    },
    default_rows,
    cases_of(mlstm_division_slope),
    space,
)  # fmt: skip
MLSTM_STATE_SLOPE = Kernel(
    mlstm_state_slope,
    {
        "grad": "T", "q": "T", "decay": "A", "inverse": "A", "reads": "A", "states": "A",
        "last": "A", "last_grad": "A", "behind": "A", "first": "A", "edge": "A", **_Q, **_SIZES,
    },
    _default_slope,
    cases_of(mlstm_state_slope),
    space,
    counted=("BLOCK_K", "BLOCK_V"),
)  # fmt: skip
