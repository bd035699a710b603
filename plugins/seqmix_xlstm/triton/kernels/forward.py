"""The mLSTM cell, forward: the pass over the states with its stabiliser, and the outputs.

B batch, H heads, S sequence, K key size, V value size; N chunks of C tokens, in tiles of L rows as
in Tiled Flash Linear Attention (arXiv 2503.14376). ``decay`` and ``weight`` are logarithms of what
remains of the state and of what a token counts, ``track`` is the stabiliser, all ``[B, H, S]``.
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
    total,
    upto,
)
from seqmix_xlstm.triton.kernels.gates import (
    GATE_STRIDES,
    divisor,
    last_of,
    preactivations,
    stabilizer,
)
from seqmix_xlstm.triton.kernels.tiles import (
    before_chunk,
    cases_of,
    default_states,
    factors,
    normalizer,
    state_tile,
)

__all__ = ["MLSTM_OUTPUTS", "MLSTM_STATES"]


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_states(
    k, v, i, f, state, m, decay, weight, track, states, last, last_m,
    k_b, k_h, k_s, v_b, v_h, v_s, i_b, i_h, i_s, f_b, f_h, f_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_K: tl.constexpr,
    STABLE: tl.constexpr, CAP: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The states before each chunk but the first, and the last; a program per tile of C.

    Each finds the stabiliser for itself; the first of a head writes what the outputs need of it.
    """
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    value = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    i += head // H * i_b + head % H * i_h
    f += head // H * f_b + head % H * f_h
    own = (key < K)[:, None] & (value < V)[None, :]
    # In the interpreter a scalar makes no mask of a block.
    summed = (key < K) & (key * 0 + tl.program_id(1) == 0)
    writes = place * 0 + tl.program_id(0) + tl.program_id(1) == 0
    at = key[:, None] * (V + 1) + value[None, :]
    size: tl.constexpr = K * (V + 1)
    carry = state_tile(state + head * size, key, value, own, V).to(ACC)
    norm = normalizer(state + head * size, key, key < K, V).to(ACC)
    first = tl.load(m + head).to(ACC)
    given = first
    if not STABLE:
        first = tl.sum(tl.zeros([1], ACC), 0)
    for n in range(N):
        to = states + (tl.cast(n - 1, tl.int64) * heads + head) * size
        tl.store(to + at, carry, mask=own & (n > 0))
        tl.store(to + key * (V + 1) + V, norm, mask=summed & (n > 0))
        length = tl.minimum(S - n * C, C)
        for tile in range(0, length, L):
            begin = tl.cast(n, tl.int64) * C + tile
            count = tl.minimum(length - tile, L)
            log_i, log_f, before, now = stabilizer(
                i + begin * i_s, f + begin * f_s, i_s, f_s, first, place, count, STABLE, CAP, ACC
            )  # fmt: skip
            token = head * S + begin + place
            tl.store(decay + token, log_f + before - now, mask=(place < count) & writes)
            tl.store(weight + token, log_i - now, mask=(place < count) & writes)
            tl.store(track + token, now, mask=(place < count) & writes)
            end = last_of(now, place, L)
            _, later = preactivations(
                i + begin * i_s, f + begin * f_s, i_s, f_s, place + 1, place + 1 < count, STABLE,
                CAP, ACC,
            )  # fmt: skip
            # The sum over just the later tokens: a difference of sums could be that of infinities.
            left = tl.cumsum(later, 0, reverse=True) + log_i - end
            kept = tl.exp(tl.sum(log_f, 0) + first - end)
            keys = rows(k + begin * k_s, k_s, place, count, key, K)
            keys = keys.to(ACC) * (tl.exp(left) * SCALE_K)[:, None]
            values = rows(v + begin * v_s, v_s, place, count, value, V).to(DOT)
            carry = tl.dot(
                tl.trans(keys.to(DOT)), values, carry * kept, input_precision=PRECISION,
                out_dtype=ACC,
            )  # fmt: skip
            norm = norm * kept + tl.sum(keys, 0)
            first = end
    out = last.dtype.element_ty
    tl.store(last + head * size + at, carry.to(out), mask=own)
    tl.store(last + head * size + key * (V + 1) + V, norm.to(out), mask=summed)
    if STABLE:
        given = first
    to = last_m + head + place
    given = given + tl.zeros([L], ACC)
    tl.store(to, given.to(last_m.dtype.element_ty), mask=writes & (place == 0))


@triton.jit(do_not_specialize=["S", "N"])
def mlstm_outputs(
    q, k, v, decay, weight, track, state, states, h,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, H, S, N,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SCALE_Q: tl.constexpr,
    SCALE_K: tl.constexpr, STABLE: tl.constexpr, NORMALIZE: tl.constexpr, EPS: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A program per tile of rows: own scores, those with earlier tiles, the state; then divided."""
    head, heads = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    TILES: tl.constexpr = (C + L - 1) // L
    n, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = tl.arange(0, L)
    start = n.to(tl.int64) * C
    begin = start + tile * L
    count = tl.minimum(tl.minimum(S - n * C, C) - tile * L, L)
    if count <= 0:
        return
    q += head // H * q_b + head % H * q_h + begin * q_s
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    decay += head * S
    weight += head * S
    known = before_chunk(state, states, head, heads, n, K * (V + 1))
    own = tl.zeros([L, L], ACC)
    reads = tl.zeros([L], ACC)
    result = tl.zeros([L, BLOCK_V], ACC)
    for part in tl.static_range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        queries = rows(q, q_s, place, count, key, K)
        keys = rows(k + begin * k_s, k_s, place, count, key, K)
        own = tl.dot(
            queries.to(DOT), tl.trans(keys.to(DOT)), own, input_precision=PRECISION, out_dtype=ACC
        )  # fmt: skip
        reached = upto(decay + begin, place, count, key, K, 1, ACC)
        queries = queries.to(ACC) * (tl.exp(reached) * SCALE_Q)
        passed = tl.zeros([1], ACC)
        for back in range(tile):
            other = start + (tile - 1 - back) * L
            left = after(decay + other, place, L, key, L, K, 1, ACC)
            counts = left + passed[None, :] + factors(weight + other, place, L)[:, None]
            past = rows(k + other * k_s, k_s, place, L, key, K)
            past = past.to(ACC) * (tl.exp(counts) * SCALE_K)
            passed += total(decay + other, place, L, key, K, 1, ACC)
            scores = tl.dot(
                queries.to(DOT), tl.trans(past.to(DOT)), input_precision=PRECISION, out_dtype=ACC
            )
            reads += tl.sum(scores, 1)
            values = rows(v + other * v_s, v_s, place, L, value, V).to(DOT)
            result = tl.dot(
                scores.to(DOT), values, result, input_precision=PRECISION, out_dtype=ACC
            )
        queries = queries * tl.exp(passed)[None, :]
        reads += tl.sum(queries * normalizer(known, key, key < K, V)[None, :], 1)
        inside = (key < K)[:, None] & (value < V)[None, :]
        columns = state_tile(known, key, value, inside, V).to(DOT)
        result = tl.dot(queries.to(DOT), columns, result, input_precision=PRECISION, out_dtype=ACC)
    counts = tl.exp(factors(weight + begin, place, count)) * (SCALE_Q * SCALE_K)
    own *= between(decay + begin, place, count, 1, ACC) * counts[None, :]
    reads += tl.sum(own, 1)
    values = rows(v + begin * v_s, v_s, place, count, value, V).to(DOT)
    result = tl.dot(own.to(DOT), values, result, input_precision=PRECISION, out_dtype=ACC)
    if NORMALIZE:
        below, _ = divisor(reads, factors(track + head * S + begin, place, count), STABLE, EPS, ACC)
        result = result / below[:, None]
    to = h + (head * S + begin) * V + place[:, None] * V + value[None, :]
    mask = (place < count)[:, None] & (value < V)[None, :]
    tl.store(to, result.to(h.dtype.element_ty), mask=mask)


def _strides(names: str, axes: str = "bhs") -> dict[str, str]:
    return {f"{name}_{axis}": "s" for name in names for axis in axes}


_SIZES = {"H": "i", "S": "i", "N": "i"}
_GATES = {"decay": "A", "weight": "A", "track": "A"}

MLSTM_STATES = Kernel(
    mlstm_states,
    {
        "k": "T", "v": "T", "i": "A", "f": "A", "state": "A", "m": "A", **_GATES, "states": "A",
        "last": "A", "last_m": "A", **_strides("kv"), **GATE_STRIDES, **_SIZES,
    },
    default_states,
    cases_of(mlstm_states),
    space,
)  # fmt: skip
MLSTM_OUTPUTS = Kernel(
    mlstm_outputs,
    {
        "q": "T", "k": "T", "v": "T", **_GATES, "state": "A", "states": "A", "h": "T",
        **_strides("qkv"), **_SIZES,
    },
    default_rows,
    cases_of(mlstm_outputs),
    space,
)  # fmt: skip
