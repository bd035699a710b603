"""The gradients of queries, keys and values in linear attention with decay, tile by tile.

Sizes and ``DECAY`` are those of :mod:`seqmix_triton.kernels.linear_attention_tiles`. ``after`` is
the gradient of the state after each chunk.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Config, Constants, Kernel
from seqmix_triton.kernels.linear_attention_tiles import (
    CASES,
    after,
    between,
    default_rows,
    diagonal_scores,
    key_slope,
    query_slope,
    rows,
    slope_of_scores,
    space,
    through_state,
    total,
    upto,
)

__all__ = [
    "CHUNK_KEY_SLOPE",
    "CHUNK_QUERY_SLOPE",
    "CHUNK_VALUE_SLOPE",
]


@triton.jit(do_not_specialize=["S", "N"])
def chunk_query_slope(
    grad, q, k, v, g, before, dq, share, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries of a tile, and ``share``, its product with them for the decays.

    That is ``[tiles of keys, B, H, S]``, or ``[B, H, S, K]`` per key channel.
    """
    head = tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (C + L - 1) // L
    n, i = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + i * L
    count = tl.minimum(S - n * C, C) - i * L
    if count <= 0:
        return
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    grad += (head * S + begin) * V
    WIDTH: tl.constexpr = K if DECAY == 2 else 1
    if DECAY > 0:
        g += head * S * WIDTH
    found = tl.zeros([L, BLOCK_K], ACC)
    passed = tl.zeros([BLOCK_K if DECAY == 2 else 1], ACC)
    for back in range(i):
        other = start + (i - 1 - back) * L
        pairs = slope_of_scores(
            grad, v + other * v_s, v_s, count, L, place, V, ACC, DOT, PRECISION, BLOCK_V
        )  # fmt: skip
        keys = rows(k + other * k_s, k_s, place, L, key, K)
        if DECAY > 0:
            earlier = g + other * WIDTH
            left = after(earlier, place, L, key, L, K, DECAY, ACC)
            keys = keys.to(ACC) * tl.exp(left + passed[None, :])
            passed += total(earlier, place, L, key, K, DECAY, ACC)
        found = tl.dot(pairs.to(DOT), keys.to(DOT), found, input_precision=PRECISION, out_dtype=ACC)
    state = before + (head * N + n) * (K * V)
    of_state = through_state(
        grad, V, state, V, count, place, key, K, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    if DECAY > 0:
        decay = upto(g + begin * WIDTH, place, count, key, K, DECAY, ACC)
        found = (found + of_state * tl.exp(passed)[None, :]) * tl.exp(decay)
    else:
        found += of_state
    pairs = slope_of_scores(
        grad, v + begin * v_s, v_s, count, count, place, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    if DECAY == 2:
        pairs = tl.where(place[:, None] >= place[None, :], pairs, 0.0)
        found += query_slope(
            pairs, k + begin * k_s, g + begin * K, place, count, key, k_s, L, K, ACC
        )  # fmt: skip
    else:
        pairs *= between(g + begin, place, count, DECAY, ACC)
        keys = rows(k + begin * k_s, k_s, place, count, key, K).to(DOT)
        found = tl.dot(pairs.to(DOT), keys, found, input_precision=PRECISION, out_dtype=ACC)
    inside = (place < count)[:, None] & (key < K)[None, :]
    at = (head * S + begin) * K + place[:, None] * K + key[None, :]
    tl.store(dq + at, found.to(dq.dtype.element_ty), mask=inside)
    if DECAY > 0:
        q += head // H * q_b + head % H * q_h + begin * q_s
        product = found * rows(q, q_s, place, count, key, K).to(ACC)
        if DECAY == 2:
            tl.store(share + at, product, mask=inside)
        else:
            to = (tl.program_id(0) * tl.num_programs(2) + head) * S + begin + place
            tl.store(share + to, tl.sum(product, 1), mask=place < count)


@triton.jit(do_not_specialize=["S", "N"])
def chunk_key_slope(
    grad, q, k, v, g, behind, dk, share, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the keys of a tile, from the later tiles of its chunk and the state after."""
    head = tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (C + L - 1) // L
    n, i = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + i * L
    length = tl.minimum(S - n * C, C)
    count = length - i * L
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h
    v += head // H * v_b + head % H * v_h + begin * v_s
    grad += head * S * V
    WIDTH: tl.constexpr = K if DECAY == 2 else 1
    if DECAY > 0:
        g += head * S * WIDTH
    found = tl.zeros([L, BLOCK_K], ACC)
    passed = tl.zeros([BLOCK_K if DECAY == 2 else 1], ACC)
    for tile in range((i + 1) * L, length, L):
        other = start + tile
        pairs = slope_of_scores(
            grad + other * V, v, v_s, length - tile, count, place, V, ACC, DOT, PRECISION, BLOCK_V
        )  # fmt: skip
        queries = rows(q + other * q_s, q_s, place, length - tile, key, K)
        if DECAY > 0:
            later = g + other * WIDTH
            left = upto(later, place, length - tile, key, K, DECAY, ACC)
            queries = queries.to(ACC) * tl.exp(left + passed[None, :])
            passed += total(later, place, length - tile, key, K, DECAY, ACC)
        found = tl.dot(
            tl.trans(pairs.to(DOT)), queries.to(DOT), found, input_precision=PRECISION,
            out_dtype=ACC,
        )  # fmt: skip
    state = behind + (head * N + n) * (K * V)
    of_state = through_state(
        v, v_s, state, V, count, place, key, K, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    if DECAY > 0:
        decay = after(g + begin * WIDTH, place, count, key, L, K, DECAY, ACC)
        found = (found + of_state * tl.exp(passed)[None, :]) * tl.exp(decay)
    else:
        found += of_state
    pairs = slope_of_scores(
        grad + begin * V, v, v_s, count, count, place, V, ACC, DOT, PRECISION, BLOCK_V
    )  # fmt: skip
    queries = rows(q + begin * q_s, q_s, place, count, key, K)
    if DECAY == 2:
        pairs = tl.where(place[:, None] >= place[None, :], pairs, 0.0)
        found += key_slope(
            pairs, queries.to(ACC), g + begin * K, place, count, key, L, K, ACC
        )  # fmt: skip
    else:
        pairs *= between(g + begin, place, count, DECAY, ACC)
        found = tl.dot(
            tl.trans(pairs.to(DOT)), queries.to(DOT), found, input_precision=PRECISION,
            out_dtype=ACC,
        )  # fmt: skip
    inside = (place < count)[:, None] & (key < K)[None, :]
    at = (head * S + begin) * K + place[:, None] * K + key[None, :]
    tl.store(dk + at, found.to(dk.dtype.element_ty), mask=inside)
    if DECAY > 0:
        k += head // H * k_b + head % H * k_h + begin * k_s
        product = found * rows(k, k_s, place, count, key, K).to(ACC)
        if DECAY == 2:
            tl.store(share + at, product, mask=inside)
        else:
            to = (tl.program_id(0) * tl.num_programs(2) + head) * S + begin + place
            tl.store(share + to, tl.sum(product, 1), mask=place < count)


@triton.jit(do_not_specialize=["S", "N"])
def chunk_value_slope(
    grad, q, k, g, behind, dv, q_b, q_h, q_s, k_b, k_h, k_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the values of a tile, from the later tiles and the state after the chunk."""
    head = tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (C + L - 1) // L
    n, i = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + i * L
    length = tl.minimum(S - n * C, C)
    count = length - i * L
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h
    k += head // H * k_b + head % H * k_h + begin * k_s
    grad += head * S * V
    WIDTH: tl.constexpr = K if DECAY == 2 else 1
    if DECAY > 0:
        g += head * S * WIDTH
    own = tl.zeros([L, L], ACC)
    found = tl.zeros([L, BLOCK_V], ACC)
    for part in tl.static_range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        keys = rows(k, k_s, place, count, key, K)
        queries = rows(q + begin * q_s, q_s, place, count, key, K)
        if DECAY == 2:
            own += diagonal_scores(
                queries.to(ACC), k, g + begin * K, place, count, key, k_s, L, K, ACC
            )  # fmt: skip
        else:
            own = tl.dot(
                queries.to(DOT), tl.trans(keys.to(DOT)), own, input_precision=PRECISION,
                out_dtype=ACC,
            )  # fmt: skip
        passed = tl.zeros([BLOCK_K if DECAY == 2 else 1], ACC)
        if DECAY > 0:
            decay = after(g + begin * WIDTH, place, count, key, L, K, DECAY, ACC)
            keys = keys.to(ACC) * tl.exp(decay)
        for tile in range((i + 1) * L, length, L):
            other = start + tile
            asking = rows(q + other * q_s, q_s, place, length - tile, key, K)
            if DECAY > 0:
                later = g + other * WIDTH
                left = upto(later, place, length - tile, key, K, DECAY, ACC)
                asking = asking.to(ACC) * tl.exp(left + passed[None, :])
                passed += total(later, place, length - tile, key, K, DECAY, ACC)
            scores = tl.dot(
                keys.to(DOT), tl.trans(asking.to(DOT)), input_precision=PRECISION, out_dtype=ACC
            )
            slope = rows(grad + other * V, V, place, length - tile, value, V).to(DOT)
            found = tl.dot(scores.to(DOT), slope, found, input_precision=PRECISION, out_dtype=ACC)
        if DECAY > 0:
            keys = keys * tl.exp(passed)[None, :]
        inside = (key < K)[:, None] & (value < V)[None, :]
        state = behind + (head * N + n) * (K * V) + key[:, None] * V + value[None, :]
        known = tl.load(state, mask=inside, other=0.0).to(DOT)
        found = tl.dot(keys.to(DOT), known, found, input_precision=PRECISION, out_dtype=ACC)
    if DECAY < 2:
        own *= between(g + begin, place, count, DECAY, ACC)
    slope = rows(grad + begin * V, V, place, count, value, V).to(DOT)
    found = tl.dot(tl.trans(own.to(DOT)), slope, found, input_precision=PRECISION, out_dtype=ACC)
    to = dv + (head * S + begin) * V + place[:, None] * V + value[None, :]
    mask = (place < count)[:, None] & (value < V)[None, :]
    tl.store(to, found.to(dv.dtype.element_ty), mask=mask)


def _default_keys(dtype: torch.dtype, constants: Constants) -> Config:
    """With decays per key channel three tiles of keys are held at once."""
    config = default_rows(dtype, constants)
    if constants["DECAY"] < 2:
        return config
    return dataclasses.replace(
        config, tiles={**config.tiles, "BLOCK_K": min(32, config.tiles["BLOCK_K"])}
    )


def _strides(names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "s" for name in names for axis in "bhs"}


_SIZES = {"H": "i", "S": "i", "N": "i"}
_GIVEN = {"grad": "T", "q": "T", "k": "T", "g": "A", **_SIZES}

CHUNK_QUERY_SLOPE = Kernel(
    chunk_query_slope,
    {**_GIVEN, "v": "T", "before": "A", "dq": "T", "share": "A", **_strides("qkv")},
    default_rows,
    CASES,
    space,
    counted=("BLOCK_K",),
)
CHUNK_KEY_SLOPE = Kernel(
    chunk_key_slope,
    {**_GIVEN, "v": "T", "behind": "A", "dk": "T", "share": "A", **_strides("qkv")},
    _default_keys,
    CASES,
    space,
    counted=("BLOCK_K",),
)
CHUNK_VALUE_SLOPE = Kernel(
    chunk_value_slope,
    {**_GIVEN, "behind": "A", "dv": "T", **_strides("qk")},
    default_rows,
    CASES,
    space,
)
