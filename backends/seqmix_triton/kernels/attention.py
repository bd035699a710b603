"""Softmax attention over explicit positions, forward; what both directions share.

B batch, H query heads, G key heads of R = H/G query heads each, S queries, T keys, K key size,
V value size. The queries of a group are the rows of one matrix, S * R of them with a token's
heads side by side, so that a group reads its keys once, and its gradients need no atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = [
    "ATTENTION",
    "CASES",
    "OPERANDS",
    "dense",
    "offsets",
    "positions_at",
    "reach",
    "reach_of_queries",
    "scores",
    "visible",
    "widths",
]

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_FAR = tl.constexpr(2147483647)


@triton.jit
def dense(pointer, rows, SIZE: tl.constexpr, COLUMNS: tl.constexpr, inside):
    """Rows given by their offsets, ``[rows, COLUMNS]``, 0 beyond ``SIZE``."""
    column = tl.arange(0, COLUMNS)
    mask = inside[:, None]
    if SIZE != COLUMNS:
        mask = mask & (column < SIZE)[None, :]
    return tl.load(pointer + rows[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def offsets(token, part, by_token, by_head, R: tl.constexpr):
    """Where rows lie, from a block's first token and a group's first head on.

    Within a block 32 bits are enough, which saves registers; between heads they are not.
    """
    at = token * by_token
    if R > 1:
        at = at + part.to(tl.int64) * by_head
    return at


@triton.jit
def positions_at(positions, at, inside):
    """Positions in 32 bits, -1 beyond the end."""
    return tl.load(positions + at, mask=inside, other=-1).to(tl.int32)


@triton.jit
def reach(positions, count, low, high, TILE: tl.constexpr):
    """The first index and one past the last with a position >= 0 within [low, high]."""
    first = tl.full((), 0, tl.int32) + count
    end = tl.full((), 0, tl.int32)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        p = positions_at(positions, at, at < count)
        hit = (p >= 0) & (p >= low) & (p <= high)
        first = tl.minimum(first, tl.min(tl.where(hit, at, count), 0))
        end = tl.maximum(end, tl.max(tl.where(hit, at + 1, 0), 0))
    return first, end


@triton.jit
def reach_of_queries(
    at_query, key_positions, T, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The range of key indices that any query at these positions may see."""
    high = tl.max(at_query, 0)
    low = tl.min(tl.where(at_query >= 0, at_query, high), 0)
    last = high if CAUSAL else tl.where(high >= 0, _FAR, -1)
    first = low - (WINDOW - 1) if WINDOW > 0 else low * 0
    return reach(key_positions, T, first, last, 1024)


@triton.jit
def visible(queries, keys, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether a query at each position sees a key, for positions that broadcast."""
    # A causal query at -1 sees no key at >= 0.
    see = (keys >= 0) & (keys <= queries if CAUSAL else queries >= 0)
    if WINDOW > 0:
        see = see & (keys > queries - WINDOW)
    return see


@triton.jit
def scores(
    products, see, bias, at, HAS_BIAS: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Logits in base 2, -inf where hidden; ``at`` are offsets into the bias."""
    logits = products * (SCALE * _LOG2_E)
    if HAS_BIAS:
        logits += tl.load(bias + at, mask=see, other=0.0).to(ACC) * _LOG2_E
    return tl.where(see, logits, float("-inf"))


@triton.jit(do_not_specialize=["S", "T"])
def attention(
    q, k, v, query_positions, key_positions, bias, sinks, y, lse,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, S, T, G,
    K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_BIAS: tl.constexpr, FEW: tl.constexpr,
    ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program per block of rows; it goes over the keys that any of them may see."""
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
    if sinks is not None:
        top = tl.load(sinks + g * R + part, mask=own, other=0.0).to(ACC) * _LOG2_E
        total = tl.full([BLOCK_M], 1.0, ACC)
    else:
        top = tl.full([BLOCK_M], float("-inf"), ACC)
        total = tl.zeros([BLOCK_M], ACC)
    sums = tl.zeros([BLOCK_M, BLOCK_V], ACC)
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
        higher = tl.maximum(top, tl.max(logits, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(logits - finite[:, None])
        kept = tl.exp2(top - finite)
        total = total * kept + tl.sum(weights, 1)
        values = dense(v + ahead * v_s, key * v_s, V, BLOCK_V, known).to(DOT)
        sums = tl.dot(
            weights.to(DOT), values, sums * kept[:, None], input_precision=PRECISION, out_dtype=ACC
        )
        top = higher
    divisor = tl.where(total == 0.0, 1.0, total)
    sums = sums / divisor[:, None]
    to = group * R * S + begin
    column = tl.arange(0, BLOCK_V)
    tl.store(
        y + to * V + offsets(token, part, V, S.to(tl.int64) * V, R)[:, None] + column[None, :],
        sums.to(y.dtype.element_ty),
        mask=own[:, None] & (column < V)[None, :],
    )
    sum_of_logs = tl.where(total == 0.0, 0.0, top * _LN_2 + tl.log(divisor))
    tl.store(lse + to + offsets(token, part, 1, S, R), sum_of_logs, mask=own)


def widths(constants: Constants) -> dict[str, int]:
    """The tiles that hold whole heads."""
    sizes = constants["K"], constants["V"]
    return {n: power_of_two(s, 16) for n, s in zip(("BLOCK_K", "BLOCK_V"), sizes, strict=True)}


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    wide = widths(constants)
    most = max(wide.values())
    if constants["FEW"]:
        return Config({"BLOCK_M": 16, "BLOCK_N": 64 if most <= 128 else 32, **wide}, 4, 2)
    if dtype.itemsize > 2:
        return Config({"BLOCK_M": 32, "BLOCK_N": 32, **wide}, 4 if most <= 64 else 8, 1)
    # A bias is read one element at a time, whose addresses take registers.
    narrow = most > 128 or constants["HAS_BIAS"]
    return Config({"BLOCK_M": 128, "BLOCK_N": 32 if narrow else 64, **wide}, 8, 2)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    wide = widths(constants)
    rows = (16,) if constants["FEW"] else (64, 128)
    return [
        Config({"BLOCK_M": m, "BLOCK_N": n, **wide}, warps, stages)
        for m in rows
        for n in (32, 64, 128)
        for warps in (4, 8)
        for stages in (1, 2, 3)
    ]


_STRIDES = {f"{name}_{axis}": "s" for name in "qkv" for axis in "bhs"}
OPERANDS = {
    "q": "T", "k": "T", "v": "T", "query_positions": "I", "key_positions": "I", "bias": "T",
    "sinks": "T", **_STRIDES, "bias_b": "s", "bias_h": "s", "S": "i", "T": "i", "G": "i",
}  # fmt: skip
"""Argument codes that forward and backward share."""

_BASE = {"K": 128, "V": 128, "R": 1, "SCALE": 0.09, "CAUSAL": True, "WINDOW": 0,
         "HAS_BIAS": False}  # fmt: skip
_NO_EXTRAS = ("sinks",)
CASES = (
    Case("128 causal", torch.bfloat16, _BASE, _NO_EXTRAS),
    Case("64 grouped window", torch.float16, {**_BASE, "K": 64, "V": 64, "R": 4, "WINDOW": 512},
         _NO_EXTRAS),
    Case("64 bias sinks", torch.bfloat16, {**_BASE, "K": 64, "V": 64, "CAUSAL": False,
         "HAS_BIAS": True}),
    Case("64 exact", torch.float32, {**_BASE, "K": 64, "V": 64}, _NO_EXTRAS),
)  # fmt: skip
"""What is compiled ahead of time, in both directions."""


def _with_few(case: Case, few: bool) -> Case:
    label = case.label + " decode" if few else case.label
    return Case(label, case.dtype, {**case.constants, "FEW": few}, case.absent)


ATTENTION = Kernel(
    attention,
    {**OPERANDS, "y": "T", "lse": "A"},
    _default,
    (*(_with_few(case, False) for case in CASES), _with_few(CASES[0], True)),
    _space,
)
