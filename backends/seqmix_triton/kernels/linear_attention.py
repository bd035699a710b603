"""Linear attention with decay, forward: the pass over the states, and the outputs of each tile.

Sizes and ``DECAY`` are those of :mod:`seqmix_triton.kernels.linear_attention_tiles`. Chunks are
cut into tiles of rows, as in Tiled Flash Linear Attention (arXiv 2503.14376), so that the length of
a chunk is bound by no memory on the chip.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two
from seqmix_triton.kernels.linear_attention_tiles import (
    CASES,
    after,
    between,
    default,
    default_rows,
    diagonal_scores,
    rows,
    space,
    total,
    upto,
)

__all__ = ["CHUNK_OUTPUTS", "CHUNK_STATES", "LINEAR_ATTENTION_STEP"]


@triton.jit(do_not_specialize=["S", "N"])
def chunk_states(
    k, v, g, state, before, last, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The state before each chunk ``[B, H, N, K, V]`` and the last; a program per tile of it."""
    head = tl.program_id(2).to(tl.int64)
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    value = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    own = (key < K)[:, None] & (value < V)[None, :]
    at = key[:, None] * V + value[None, :]
    carry = tl.load(state + head * (K * V) + at, mask=own, other=0.0).to(ACC)
    for n in range(N):
        tl.store(before + (head * N + n) * (K * V) + at, carry, mask=own)
        length = tl.minimum(S - n * C, C)
        for tile in range(0, length, L):
            begin = tl.cast(n, tl.int64) * C + tile
            count = length - tile
            keys = rows(k + begin * k_s, k_s, place, count, key, K)
            values = rows(v + begin * v_s, v_s, place, count, value, V).to(DOT)
            if DECAY > 0:
                decay = g + (head * S + begin) * (K if DECAY == 2 else 1)
                left = after(decay, place, count, key, L, K, DECAY, ACC)
                keys = keys.to(ACC) * tl.exp(left)
                carry *= tl.exp(total(decay, place, count, key, K, DECAY, ACC))[:, None]
            carry = tl.dot(
                tl.trans(keys.to(DOT)), values, carry, input_precision=PRECISION, out_dtype=ACC
            )
    tl.store(last + head * (K * V) + at, carry.to(last.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["S", "N"])
def chunk_outputs(
    q, k, v, g, before, y, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A program per tile of rows: its own scores, those with earlier tiles, and the state."""
    head = tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (C + L - 1) // L
    n, i = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + i * L
    count = tl.minimum(S - n * C, C) - i * L
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h + begin * q_s
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    WIDTH: tl.constexpr = K if DECAY == 2 else 1
    if DECAY > 0:
        g += head * S * WIDTH
    own = tl.zeros([L, L], ACC)
    result = tl.zeros([L, BLOCK_V], ACC)
    for part in tl.static_range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        queries = rows(q, q_s, place, count, key, K)
        keys = rows(k + begin * k_s, k_s, place, count, key, K)
        if DECAY == 2:
            own += diagonal_scores(
                queries.to(ACC), k + begin * k_s, g + begin * K, place, count, key, k_s, L, K, ACC
            )  # fmt: skip
        else:
            own = tl.dot(
                queries.to(DOT), tl.trans(keys.to(DOT)), own, input_precision=PRECISION,
                out_dtype=ACC,
            )  # fmt: skip
        passed = tl.zeros([BLOCK_K if DECAY == 2 else 1], ACC)
        if DECAY > 0:
            decay = upto(g + begin * WIDTH, place, count, key, K, DECAY, ACC)
            queries = queries.to(ACC) * tl.exp(decay)
        for back in range(i):
            from_start = start + (i - 1 - back) * L
            past = rows(k + from_start * k_s, k_s, place, L, key, K)
            if DECAY > 0:
                earlier = g + from_start * WIDTH
                left = after(earlier, place, L, key, L, K, DECAY, ACC)
                past = past.to(ACC) * tl.exp(left + passed[None, :])
                passed += total(earlier, place, L, key, K, DECAY, ACC)
            scores = tl.dot(
                queries.to(DOT), tl.trans(past.to(DOT)), input_precision=PRECISION, out_dtype=ACC
            )
            values = rows(v + from_start * v_s, v_s, place, L, value, V).to(DOT)
            result = tl.dot(
                scores.to(DOT), values, result, input_precision=PRECISION, out_dtype=ACC
            )
        if DECAY > 0:
            queries = queries * tl.exp(passed)[None, :]
        inside = (key < K)[:, None] & (value < V)[None, :]
        state = before + (head * N + n) * (K * V) + key[:, None] * V + value[None, :]
        known = tl.load(state, mask=inside, other=0.0).to(DOT)
        result = tl.dot(queries.to(DOT), known, result, input_precision=PRECISION, out_dtype=ACC)
    if DECAY < 2:
        own *= between(g + begin, place, count, DECAY, ACC)
    values = rows(v + begin * v_s, v_s, place, count, value, V).to(DOT)
    result = tl.dot(own.to(DOT), values, result, input_precision=PRECISION, out_dtype=ACC)
    to = y + (head * S + begin) * V + place[:, None] * V + value[None, :]
    mask = (place < count)[:, None] & (value < V)[None, :]
    tl.store(to, result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def linear_attention_step(
    q, k, v, g, state, y, before, last, q_b, q_h, k_b, k_h, v_b, v_h, H,
    K: tl.constexpr, V: tl.constexpr, DECAY: tl.constexpr, ACC: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One token: the state is read once and written once; ``before`` is its copy, if wanted."""
    head = tl.program_id(1).to(tl.int64)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    q += head // H * q_b + head % H * q_h
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    added = tl.load(v + value, mask=value < V, other=0.0).to(ACC)
    result = tl.zeros([BLOCK_V], ACC)
    for part in range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        own = (key < K)[:, None] & (value < V)[None, :]
        at = head * (K * V) + key[:, None] * V + value[None, :]
        carry = tl.load(state + at, mask=own, other=0.0).to(ACC)
        tl.store(before + at, carry, mask=own)
        if DECAY == 1:
            carry *= tl.exp(tl.load(g + head).to(ACC))
        if DECAY == 2:
            carry *= tl.exp(tl.load(g + head * K + key, mask=key < K, other=0.0).to(ACC))[:, None]
        keys = tl.load(k + key, mask=key < K, other=0.0).to(ACC)
        carry += keys[:, None] * added[None, :]
        tl.store(last + at, carry.to(last.dtype.element_ty), mask=own)
        queries = tl.load(q + key, mask=key < K, other=0.0).to(ACC)
        result += tl.sum(queries[:, None] * carry, 0)
    tl.store(y + head * V + value, result.to(y.dtype.element_ty), mask=value < V)


def _default_step(dtype: torch.dtype, constants: Constants) -> Config:
    width = min(32, power_of_two(constants["V"]))
    return Config({"BLOCK_K": min(64, power_of_two(constants["K"])), "BLOCK_V": width}, 2, 1)


def _strides(names: str, axes: str = "bhs") -> dict[str, str]:
    return {f"{name}_{axis}": "s" for name in names for axis in axes}


_SIZES = {"H": "i", "S": "i", "N": "i"}
_STEP = {case.label: {n: case.constants[n] for n in ("K", "V", "DECAY")} for case in CASES}

CHUNK_STATES = Kernel(
    chunk_states,
    {
        "k": "T", "v": "T", "g": "A", "state": "A", "before": "A", "last": "A",
        **_strides("kv"), **_SIZES,
    },
    default,
    CASES,
    space,
)  # fmt: skip
CHUNK_OUTPUTS = Kernel(
    chunk_outputs,
    {"q": "T", "k": "T", "v": "T", "g": "A", "before": "A", "y": "T", **_strides("qkv"), **_SIZES},
    default_rows,
    CASES,
    space,
)
LINEAR_ATTENTION_STEP = Kernel(
    linear_attention_step,
    {
        "q": "T", "k": "T", "v": "T", "g": "A", "state": "A", "y": "T", "before": "A",
        "last": "A", **_strides("qkv", "bh"), "H": "i",
    },
    _default_step,
    tuple(Case(case.label, case.dtype, _STEP[case.label]) for case in CASES[:4]),
)  # fmt: skip
