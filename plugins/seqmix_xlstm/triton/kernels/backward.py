"""The gradients of queries, keys and values of the mLSTM cell, tile by tile.

Sizes are those of :mod:`seqmix_xlstm.triton.kernels.forward`. ``inverse`` is 1 by the divisor and
``reads`` the gradient of ``n . q`` times the divisor, both ``[B, H, S]``; ``behind
[N, B, H, K, V + 1]`` is the gradient of the state after each chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seqmix_triton.kernel import Kernel
from seqmix_triton.kernels.linear_attention_tiles import (
    after,
    between,
    default_rows,
    rows,
    space,
    through_state,
    total,
    upto,
)
from seqmix_xlstm.triton.kernels.tiles import (
    before_chunk,
    cases_of,
    factors,
    normalizer,
    slope_of_pairs,
    state_tile,
    write_slope,
)

__all__ = ["MLSTM_KEY_SLOPE", "MLSTM_QUERY_SLOPE", "MLSTM_VALUE_SLOPE"]


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_query_slope(
    grad, q, k, v, decay, weight, inverse, reads, state, states, dq, share,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    SCALE_K: tl.constexpr, NORMALIZE: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries of a tile, and ``share``, its product with them.

    That is ``[tiles of keys, B, H, S]``, and leads to the gradient of the decays.
    """
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    TILES: tl.constexpr = (C + L - 1) // L
    n, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + tile * L
    count = tl.minimum(tl.minimum(S - n * C, C) - tile * L, L)
    if count <= 0:
        return
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    grad += (head * S + begin) * V
    decay += head * S
    weight += head * S
    inverse += head * S + begin
    reads += head * S + begin
    found = tl.zeros([L, BLOCK_K], ACC)
    passed = tl.zeros([1], ACC)
    for back in range(tile):
        other = start + (tile - 1 - back) * L
        pairs = slope_of_pairs(
            grad, v + other * v_s, v_s, reads, count, L, place, V, NORMALIZE, ACC, DOT,
            PRECISION, BLOCK_V,
        )  # fmt: skip
        left = after(decay + other, place, L, key, L, K, 1, ACC)
        counts = left + passed[None, :] + factors(weight + other, place, L)[:, None]
        keys = rows(k + other * k_s, k_s, place, L, key, K)
        keys = keys.to(ACC) * (tl.exp(counts) * SCALE_K)
        passed += total(decay + other, place, L, key, K, 1, ACC)
        found = tl.dot(pairs.to(DOT), keys.to(DOT), found, input_precision=PRECISION, out_dtype=ACC)
    known = before_chunk(state, states, head, heads, n, K * (V + 1))
    of_state = through_state(
        grad, V, known, V + 1, count, place, key, K, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    if NORMALIZE:
        norm = normalizer(known, key, key < K, V)
        of_state += factors(reads, place, count)[:, None] * norm[None, :]
    reached = tl.exp(upto(decay + begin, place, count, key, K, 1, ACC)) * SCALE_Q
    found = (found + of_state * tl.exp(passed)[None, :]) * reached
    pairs = slope_of_pairs(
        grad, v + begin * v_s, v_s, reads, count, count, place, V, NORMALIZE, ACC, DOT,
        PRECISION, BLOCK_V,
    )  # fmt: skip
    counts = tl.exp(factors(weight + begin, place, count)) * (SCALE_Q * SCALE_K)
    pairs *= between(decay + begin, place, count, 1, ACC) * counts[None, :]
    keys = rows(k + begin * k_s, k_s, place, count, key, K).to(DOT)
    found = tl.dot(pairs.to(DOT), keys, found, input_precision=PRECISION, out_dtype=ACC)
    if NORMALIZE:
        found *= factors(inverse, place, count)[:, None]
    q += head // H * q_b + head % H * q_h + begin * q_s
    share += tl.program_id(0).to(tl.int64) * heads * S
    write_slope(found, dq, q, q_s, share, head, S, begin, place, count, key, K, ACC)


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_key_slope(
    grad, q, k, v, decay, weight, inverse, reads, behind, dk, share,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    SCALE_K: tl.constexpr, NORMALIZE: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the keys of a tile, and ``share``, as that of the queries."""
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    TILES: tl.constexpr = (C + L - 1) // L
    n, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + tile * L
    length = tl.minimum(S - n * C, C)
    count = tl.minimum(length - tile * L, L)
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h
    v += head // H * v_b + head % H * v_h + begin * v_s
    grad += head * S * V
    decay += head * S
    inverse += head * S
    reads += head * S
    found = tl.zeros([L, BLOCK_K], ACC)
    passed = tl.zeros([1], ACC)
    for ahead in range((tile + 1) * L, length, L):
        other = start + ahead
        held = tl.minimum(length - ahead, L)
        pairs = slope_of_pairs(
            grad + other * V, v, v_s, reads + other, held, count, place, V, NORMALIZE, ACC, DOT,
            PRECISION, BLOCK_V,
        )  # fmt: skip
        reached = upto(decay + other, place, held, key, K, 1, ACC) + passed[None, :]
        queries = rows(q + other * q_s, q_s, place, held, key, K)
        queries = queries.to(ACC) * (tl.exp(reached) * SCALE_Q)
        if NORMALIZE:
            # Half of it each, as a narrow type might not hold the whole.
            half = tl.sqrt(factors(inverse + other, place, held))[:, None]
            pairs, queries = pairs * half, queries * half
        passed += total(decay + other, place, held, key, K, 1, ACC)
        found = tl.dot(
            tl.trans(pairs.to(DOT)), queries.to(DOT), found, input_precision=PRECISION,
            out_dtype=ACC,
        )  # fmt: skip
    beyond = behind + (tl.cast(n, tl.int64) * heads + head) * (K * (V + 1))
    of_state = through_state(
        v, v_s, beyond, V + 1, count, place, key, K, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    of_state += normalizer(beyond, key, key < K, V)[None, :]
    own = factors(weight + head * S + begin, place, count)
    left = after(decay + begin, place, count, key, L, K, 1, ACC) + own[:, None]
    found = (found + of_state * tl.exp(passed)[None, :]) * (tl.exp(left) * SCALE_K)
    pairs = slope_of_pairs(
        grad + begin * V, v, v_s, reads + begin, count, count, place, V, NORMALIZE, ACC, DOT,
        PRECISION, BLOCK_V,
    )  # fmt: skip
    counts = tl.exp(own) * (SCALE_Q * SCALE_K)
    pairs *= between(decay + begin, place, count, 1, ACC) * counts[None, :]
    queries = rows(q + begin * q_s, q_s, place, count, key, K)
    if NORMALIZE:
        half = tl.sqrt(factors(inverse + begin, place, count))[:, None]
        pairs, queries = pairs * half, queries.to(ACC) * half
    found = tl.dot(
        tl.trans(pairs.to(DOT)), queries.to(DOT), found, input_precision=PRECISION, out_dtype=ACC
    )  # fmt: skip
    k += head // H * k_b + head % H * k_h + begin * k_s
    share += tl.program_id(0).to(tl.int64) * heads * S
    write_slope(found, dk, k, k_s, share, head, S, begin, place, count, key, K, ACC)


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_value_slope(
    grad, q, k, decay, weight, inverse, behind, dv, q_b, q_h, q_s, k_b, k_h, k_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    SCALE_K: tl.constexpr, NORMALIZE: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the values of a tile, from the later tiles and the state after the chunk."""
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    TILES: tl.constexpr = (C + L - 1) // L
    n, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + tile * L
    length = tl.minimum(S - n * C, C)
    count = tl.minimum(length - tile * L, L)
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h
    k += head // H * k_b + head % H * k_h + begin * k_s
    grad += head * S * V
    decay += head * S
    inverse += head * S
    beyond = behind + (tl.cast(n, tl.int64) * heads + head) * (K * (V + 1))
    counts = factors(weight + head * S + begin, place, count)
    own = tl.zeros([L, L], ACC)
    found = tl.zeros([L, BLOCK_V], ACC)
    for part in tl.static_range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        keys = rows(k, k_s, place, count, key, K)
        queries = rows(q + begin * q_s, q_s, place, count, key, K).to(DOT)
        own = tl.dot(queries, tl.trans(keys.to(DOT)), own, input_precision=PRECISION, out_dtype=ACC)
        left = after(decay + begin, place, count, key, L, K, 1, ACC) + counts[:, None]
        keys = keys.to(ACC) * (tl.exp(left) * SCALE_K)
        passed = tl.zeros([1], ACC)
        for ahead in range((tile + 1) * L, length, L):
            other = start + ahead
            held = tl.minimum(length - ahead, L)
            reached = upto(decay + other, place, held, key, K, 1, ACC) + passed[None, :]
            asking = rows(q + other * q_s, q_s, place, held, key, K)
            asking = asking.to(ACC) * (tl.exp(reached) * SCALE_Q)
            passed += total(decay + other, place, held, key, K, 1, ACC)
            scores = tl.dot(
                keys.to(DOT), tl.trans(asking.to(DOT)), input_precision=PRECISION, out_dtype=ACC
            )
            if NORMALIZE:
                scores *= factors(inverse + other, place, held)[None, :]
            slope = rows(grad + other * V, V, place, held, value, V).to(DOT)
            found = tl.dot(scores.to(DOT), slope, found, input_precision=PRECISION, out_dtype=ACC)
        keys = keys * tl.exp(passed)[None, :]
        inside = (key < K)[:, None] & (value < V)[None, :]
        known = state_tile(beyond, key, value, inside, V).to(DOT)
        found = tl.dot(keys.to(DOT), known, found, input_precision=PRECISION, out_dtype=ACC)
    own *= between(decay + begin, place, count, 1, ACC)
    own *= tl.exp(counts)[None, :] * (SCALE_Q * SCALE_K)
    if NORMALIZE:
        own *= factors(inverse + begin, place, count)[:, None]
    slope = rows(grad + begin * V, V, place, count, value, V).to(DOT)
    found = tl.dot(tl.trans(own.to(DOT)), slope, found, input_precision=PRECISION, out_dtype=ACC)
    to = dv + (head * S + begin) * V + place[:, None] * V + value[None, :]
    mask = (place < count)[:, None] & (value < V)[None, :]
    tl.store(to, found.to(dv.dtype.element_ty), mask=mask)


def _strides(names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "s" for name in names for axis in "bhs"}


_GIVEN = {
    "grad": "T", "q": "T", "k": "T", "decay": "A", "weight": "A", "inverse": "A",
    "H": "i", "S": "i", "N": "i",
}  # fmt: skip

MLSTM_QUERY_SLOPE = Kernel(
    mlstm_query_slope,
    {
        **_GIVEN, "v": "T", "reads": "A", "state": "A", "states": "A", "dq": "T", "share": "A",
        **_strides("qkv"),
    },
    default_rows,
    cases_of(mlstm_query_slope),
    space,
    counted=("BLOCK_K",),
)  # fmt: skip
MLSTM_KEY_SLOPE = Kernel(
    mlstm_key_slope,
    {
        **_GIVEN, "v": "T", "reads": "A", "behind": "A", "dk": "T", "share": "A",
        **_strides("qkv"),
    },
    default_rows,
    cases_of(mlstm_key_slope),
    space,
    counted=("BLOCK_K",),
)  # fmt: skip
MLSTM_VALUE_SLOPE = Kernel(
    mlstm_value_slope,
    {**_GIVEN, "behind": "A", "dv": "T", **_strides("qk")},
    default_rows,
    cases_of(mlstm_value_slope),
    space,
)
