"""The gradients of softmax attention; logits are computed anew, never kept.

B batch, H query heads, G key heads of R query heads each, S queries, T keys, K key size, V value
size. Rows are those of :mod:`seqmix_triton.kernels.attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel
from seqmix_triton.kernels.attention import (
    CASES,
    OPERANDS,
    dense,
    offsets,
    positions_at,
    reach,
    reach_of_queries,
    scores,
    visible,
    widths,
)

__all__ = ["ATTENTION_KEYS", "ATTENTION_QUERIES"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_FAR = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["S", "T"])
def attention_queries(
    grad, q, k, v, query_positions, key_positions, bias, y, lse, dq, dbias, inner,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, S, T, G,
    K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, those of the logits where a bias wants them, and ``inner [B,H,S]``.

    ``inner`` is the product of y and its gradient, which the kernel for the keys reads.
    """
    group = tl.program_id(1).to(tl.int64)
    b, g = group // G, group % G
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    origin = tl.program_id(0) * BLOCK_M // R
    token, part = row // R - origin, row % R
    own = origin + token < S
    begin = origin.to(tl.int64)
    at_query = positions_at(query_positions + b * S + begin, token, own)
    start, end = reach_of_queries(at_query, key_positions + b * T, T, CAUSAL, WINDOW)

    q += b * q_b + g * R * q_h + begin * q_s
    queries = dense(q, offsets(token, part, q_s, q_h, R), K, BLOCK_K, own).to(DOT)
    to = group * R * S + begin
    length = S.to(tl.int64)
    out = offsets(token, part, V, length * V, R)
    slope = dense(grad + to * V, out, V, BLOCK_V, own)
    product = tl.sum(slope.to(ACC) * dense(y + to * V, out, V, BLOCK_V, own).to(ACC), 1)
    out = offsets(token, part, 1, length, R)
    tl.store(inner + to + out, product, mask=own)
    slope = slope.to(DOT)
    base = tl.load(lse + to + out, mask=own, other=0.0)
    base = tl.where(base == float("-inf"), 0.0, base) * _LOG2_E
    total = tl.zeros([BLOCK_M, BLOCK_K], ACC)
    k += b * k_b + g * k_h
    v += b * v_b + g * v_h
    if HAS_BIAS:
        bias += b * bias_b + g * R * bias_h + begin * T
    bias_row = offsets(token, part, T, bias_h, R)[:, None]
    key = tl.arange(0, BLOCK_N)
    for block in range(start // BLOCK_N * BLOCK_N, end, BLOCK_N):
        ahead = tl.cast(block, tl.int64)
        known = block + key < T
        at_key = positions_at(key_positions + b * T + block, key, known)
        keys = dense(k + ahead * k_s, key * k_s, K, BLOCK_K, known).to(DOT)
        products = tl.dot(queries, tl.trans(keys), input_precision=PRECISION, out_dtype=ACC)
        see = visible(at_query[:, None], at_key[None, :], CAUSAL, WINDOW)
        logits = scores(
            products, see, bias + block, bias_row + key[None, :], HAS_BIAS, SCALE, ACC
        )  # fmt: skip
        weights = tl.exp2(logits - base[:, None])
        values = dense(v + ahead * v_s, key * v_s, V, BLOCK_V, known).to(DOT)
        of_weights = tl.dot(slope, tl.trans(values), input_precision=PRECISION, out_dtype=ACC)
        change = weights * (of_weights - product[:, None])
        if dbias is not None:
            at_logits = offsets(token, part, T, length * T, R)[:, None] + key[None, :]
            tl.store(dbias + to * T + block + at_logits, change, mask=see)
        total = tl.dot(change.to(DOT), keys, total, input_precision=PRECISION, out_dtype=ACC)
    column = tl.arange(0, BLOCK_K)
    tl.store(
        dq + to * K + offsets(token, part, K, length * K, R)[:, None] + column[None, :],
        (total * SCALE).to(dq.dtype.element_ty),
        mask=own[:, None] & (column < K)[None, :],
    )


@triton.jit(do_not_specialize=["S", "T"])
def attention_keys(
    grad, q, k, v, query_positions, key_positions, bias, lse, inner, dk, dv,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, S, T, G,
    K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, over the rows that may see any of them."""
    group = tl.program_id(1).to(tl.int64)
    b, g = group // G, group % G
    place = tl.program_id(0) * BLOCK_N
    ahead = place.to(tl.int64)
    key = tl.arange(0, BLOCK_N)
    known = place + key < T
    at_key = positions_at(key_positions + b * T + ahead, key, known)
    high = tl.max(at_key, 0)
    low = tl.min(tl.where(at_key >= 0, at_key, high), 0)
    first = low if CAUSAL else low * 0
    last = tl.where(high >= 0, _FAR, -1)
    if WINDOW > 0:
        last = tl.where(high >= 0, high + (WINDOW - 1), -1)
    start, end = reach(query_positions + b * S, S, first, last, 1024)

    k += b * k_b + g * k_h + ahead * k_s
    v += b * v_b + g * v_h + ahead * v_s
    keys = dense(k, key * k_s, K, BLOCK_K, known).to(DOT)
    values = dense(v, key * v_s, V, BLOCK_V, known).to(DOT)
    of_keys = tl.zeros([BLOCK_N, BLOCK_K], ACC)
    of_values = tl.zeros([BLOCK_N, BLOCK_V], ACC)
    q += b * q_b + g * R * q_h
    if HAS_BIAS:
        bias += b * bias_b + g * R * bias_h + ahead
    length = S.to(tl.int64)
    for block in range(start * R // BLOCK_M * BLOCK_M, end * R, BLOCK_M):
        row = block + tl.arange(0, BLOCK_M)
        origin = block // R
        token, part = row // R - origin, row % R
        own = origin + token < S
        begin = tl.cast(origin, tl.int64)
        at_query = positions_at(query_positions + b * S + begin, token, own)
        queries = dense(
            q + begin * q_s, offsets(token, part, q_s, q_h, R), K, BLOCK_K, own
        ).to(DOT)  # fmt: skip
        products = tl.dot(keys, tl.trans(queries), input_precision=PRECISION, out_dtype=ACC)
        see = visible(at_query[None, :], at_key[:, None], CAUSAL, WINDOW)
        at_bias = offsets(token, part, T, bias_h, R)[None, :] + key[:, None]
        logits = scores(products, see, bias + begin * T, at_bias, HAS_BIAS, SCALE, ACC)
        to = group * R * S + begin
        out = offsets(token, part, 1, length, R)
        base = tl.load(lse + to + out, mask=own, other=0.0)
        base = tl.where(base == float("-inf"), 0.0, base) * _LOG2_E
        weights = tl.exp2(logits - base[None, :])
        out = offsets(token, part, V, length * V, R)
        slope = dense(grad + to * V, out, V, BLOCK_V, own).to(DOT)
        of_values = tl.dot(
            weights.to(DOT), slope, of_values, input_precision=PRECISION, out_dtype=ACC
        )
        of_weights = tl.dot(values, tl.trans(slope), input_precision=PRECISION, out_dtype=ACC)
        product = tl.load(inner + to + offsets(token, part, 1, length, R), mask=own, other=0.0)
        change = weights * (of_weights - product[None, :])
        of_keys = tl.dot(change.to(DOT), queries, of_keys, input_precision=PRECISION, out_dtype=ACC)
    to = group * T + ahead
    column = tl.arange(0, BLOCK_K)
    tl.store(
        dk + to * K + key[:, None] * K + column[None, :],
        (of_keys * SCALE).to(dk.dtype.element_ty),
        mask=known[:, None] & (column < K)[None, :],
    )
    column = tl.arange(0, BLOCK_V)
    tl.store(
        dv + to * V + key[:, None] * V + column[None, :],
        of_values.to(dv.dtype.element_ty),
        mask=known[:, None] & (column < V)[None, :],
    )


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    wide = widths(constants)
    most = max(wide.values())
    if dtype.itemsize > 2:
        return Config({"BLOCK_M": 32, "BLOCK_N": 32, **wide}, 4 if most <= 32 else 8, 1)
    if most <= 64:
        return Config({"BLOCK_M": 64, "BLOCK_N": 32, **wide}, 4, 1)
    block = 64 if most <= 128 and not constants["HAS_BIAS"] else 32
    return Config({"BLOCK_M": block, "BLOCK_N": block, **wide}, 8, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    wide = widths(constants)
    return [
        Config({"BLOCK_M": m, "BLOCK_N": n, **wide}, warps, stages)
        for m in (32, 64, 128)
        for n in (32, 64, 128)
        for warps in (4, 8)
        for stages in (1, 2)
    ]


_GIVEN = {name: code for name, code in OPERANDS.items() if name != "sinks"}


def _without_sinks(case: Case, *absent: str) -> Case:
    return Case(case.label, case.dtype, case.constants, absent)


ATTENTION_QUERIES = Kernel(
    attention_queries,
    {**_GIVEN, "grad": "T", "y": "T", "lse": "A", "dq": "T", "dbias": "A", "inner": "A"},
    _default,
    tuple(
        _without_sinks(case, *(() if case.constants["HAS_BIAS"] else ("dbias",))) for case in CASES
    ),
    _space,
)
ATTENTION_KEYS = Kernel(
    attention_keys,
    {**_GIVEN, "grad": "T", "lse": "A", "inner": "A", "dk": "T", "dv": "T"},
    _default,
    tuple(_without_sinks(case) for case in CASES),
    _space,
    spills={
        "cuda:90 128 causal": "Triton 3.6 alone: 112 bytes beside two sums of 64 x 128; none in 3.9"
    },
)
