"""What the kernels of linear attention share: tiles of rows, and the decays between them.

B batch, H heads, S sequence, K key size, V value size; chunks of C tokens, in tiles of L rows.
``DECAY`` is 0 without decays, 1 with one per head, 2 with one per key channel. Decays are products
over just the tokens between two places: the difference of two running sums would lose digits, and
be NaN after a decay to 0.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, power_of_two

__all__ = [
    "CASES",
    "after",
    "between",
    "columns",
    "default",
    "default_rows",
    "diagonal_scores",
    "key_slope",
    "one_row",
    "query_slope",
    "rows",
    "slope_of_scores",
    "space",
    "through_state",
    "total",
    "upto",
]


@triton.jit
def rows(pointer, stride, place, count, column, SIZE: tl.constexpr):
    """A tile of ``count`` rows at ``pointer``, 0 beyond them and beyond SIZE columns."""
    mask = (place < count)[:, None] & (column < SIZE)[None, :]
    return tl.load(pointer + place[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def one_row(pointer, stride, row, count, column, SIZE: tl.constexpr, ACC: tl.constexpr):
    """One of ``count`` rows, 0 for one beyond them."""
    row += tl.zeros_like(column)
    inside = (column < SIZE) & (row < count)
    return tl.load(pointer + row * stride + column, mask=inside, other=0.0).to(ACC)


@triton.jit
def columns(tile, place, DECAY: tl.constexpr):
    """The column ``place`` of a square tile."""
    own = tl.arange(0, tile.shape[1])[None, :] == place
    return tl.sum(tl.where(own, tile, 0.0), 1)


@triton.jit
def upto(g, place, count, column, K: tl.constexpr, DECAY: tl.constexpr, ACC: tl.constexpr):
    """The log of what is left at each row of what came in at the start of the tile."""
    if DECAY == 2:
        log = tl.cumsum(rows(g, K, place, count, column, K).to(ACC), 0)
    else:
        # Triton 3.6 cannot scan a tile that is one column wide.
        log = tl.cumsum(tl.load(g + place, mask=place < count, other=0.0).to(ACC), 0)[:, None]
    return log


@triton.jit
def after(
    g, place, count, column, L: tl.constexpr, K: tl.constexpr, DECAY: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The log of what is left of each row at the end of the tile."""
    later = tl.where(place + 1 < L, place + 1, count)
    if DECAY == 2:
        log = tl.cumsum(rows(g, K, later, count, column, K).to(ACC), 0, reverse=True)
    else:
        step = tl.load(g + later, mask=later < count, other=0.0).to(ACC)
        log = tl.cumsum(step, 0, reverse=True)[:, None]
    return log


@triton.jit
def total(g, place, count, column, K: tl.constexpr, DECAY: tl.constexpr, ACC: tl.constexpr):
    """The log of what passes the whole tile, ``[1 or columns]``."""
    if DECAY == 2:
        log = tl.sum(rows(g, K, place, count, column, K).to(ACC), 0)
    else:
        log = tl.sum(tl.load(g + place, mask=place < count, other=0.0).to(ACC)[:, None], 0)
    return log


@triton.jit
def between(g, place, count, DECAY: tl.constexpr, ACC: tl.constexpr):
    """What is left at a row (first axis) of an earlier one of its tile; 0 if that is later."""
    row, earlier = place[:, None], place[None, :]
    left = tl.where(row >= earlier, 1.0, 0.0).to(ACC)
    if DECAY > 0:
        step = tl.load(g + place, mask=place < count, other=0.0).to(ACC)
        log = tl.cumsum(tl.where(row > earlier, step[:, None], 0.0), 0)
        left *= tl.exp(log)
    return left


@triton.jit
def diagonal_scores(
    q, k, g, place, count, column, k_s, L: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Scores within a tile with decays per key channel; ``q`` is a tile, ``k`` and ``g`` pointers.

    Each column takes L * columns products of its own, as no running sum serves all of them.
    """
    found = tl.zeros([L, L], ACC)
    log = tl.zeros([L, column.shape[0]], ACC)
    for i in range(L):
        j = L - 1 - i
        step = one_row(g, K, j + 1, tl.minimum(count, L), column, K, ACC)
        log += tl.where(place[:, None] > j, step[None, :], 0.0)
        key = one_row(k, k_s, j, count, column, K, ACC)
        score = tl.sum(q * key[None, :] * tl.exp(log), 1)
        here = (place[None, :] == j) & (place[:, None] >= j)
        found += tl.where(here, score[:, None], 0.0)
    return found


@triton.jit
def query_slope(
    pairs, k, g, place, count, column, k_s, L: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """The gradient of the queries of a tile for that of its scores, decays per key channel."""
    found = tl.zeros([L, column.shape[0]], ACC)
    log = tl.zeros([L, column.shape[0]], ACC)
    for i in range(L):
        j = L - 1 - i
        step = one_row(g, K, j + 1, tl.minimum(count, L), column, K, ACC)
        log += tl.where(place[:, None] > j, step[None, :], 0.0)
        key = one_row(k, k_s, j, count, column, K, ACC)
        found += columns(pairs, j, 2)[:, None] * tl.exp(log) * key[None, :]
    return found


@triton.jit
def key_slope(
    pairs, q, g, place, count, column, L: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """The gradient of the keys of a tile for that of its scores; ``q`` is a tile."""
    found = tl.zeros([L, column.shape[0]], ACC)
    log = tl.zeros([L, column.shape[0]], ACC)
    for i in range(L):
        j = L - 1 - i
        step = one_row(g, K, j + 1, tl.minimum(count, L), column, K, ACC)
        log += tl.where(place[:, None] > j, step[None, :], 0.0)
        slope = tl.sum(columns(pairs, j, 2)[:, None] * tl.exp(log) * q, 0)
        found += tl.where(place[:, None] == j, slope[None, :], 0.0)
    return found


@triton.jit
def slope_of_scores(
    grad, v, v_s, count, others, place,
    V: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores of ``count`` rows of ``grad`` with ``others`` rows of v."""
    found = tl.zeros([place.shape[0], place.shape[0]], ACC)
    for part in range(0, V, BLOCK_V):
        value = part + tl.arange(0, BLOCK_V)
        slope = rows(grad, V, place, count, value, V).to(DOT)
        values = rows(v, v_s, place, others, value, V).to(DOT)
        found = tl.dot(slope, tl.trans(values), found, input_precision=PRECISION, out_dtype=ACC)
    return found


@triton.jit
def through_state(
    x, x_s, state, state_s, count, place, key,
    K: tl.constexpr, V: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Rows of x times a state transposed, ``[L, keys]``; its rows are ``state_s`` apart."""
    found = tl.zeros([place.shape[0], key.shape[0]], ACC)
    for part in range(0, V, BLOCK_V):
        value = part + tl.arange(0, BLOCK_V)
        given = rows(x, x_s, place, count, value, V).to(DOT)
        inside = (key < K)[:, None] & (value < V)[None, :]
        known = tl.load(state + key[:, None] * state_s + value[None, :], mask=inside, other=0.0)
        found = tl.dot(
            given, tl.trans(known.to(DOT)), found, input_precision=PRECISION, out_dtype=ACC
        )
    return found


def default(dtype: torch.dtype, constants: Constants) -> Config:
    """Tiles of at most 64, less for float32, whose products take more registers."""
    most = 64 if dtype.itemsize == 2 else 32
    tiles = {
        "L": min(most, power_of_two(constants["C"], 16)),
        "BLOCK_K": min(most, power_of_two(constants["K"], 16)),
        "BLOCK_V": min(most, power_of_two(constants["V"], 16)),
    }
    # Rows that start anywhere are read element by element, whose addresses take registers.
    aligned = constants["K"] % 8 == 0 and constants["V"] % 8 == 0
    return Config(tiles, 4 if aligned else 8, 1)


def default_rows(dtype: torch.dtype, constants: Constants) -> Config:
    """The same for a tile of rows: what it sums over several tiles stays in registers meanwhile."""
    config = default(dtype, constants)
    tiles = zip("CKV", config.tiles.values(), strict=True)
    several = any(constants[size] > tile for size, tile in tiles)
    return dataclasses.replace(config, warps=8 if several else config.warps)


def space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    """Tiles of rows, keys and values that differ from the default."""
    sizes = [[t for t in (16, 32, 64, 128) if t <= power_of_two(constants[n], 16)] for n in "CKV"]
    return [
        Config({"L": rows, "BLOCK_K": keys, "BLOCK_V": values}, warps, stages)
        for rows in sizes[0]
        for keys in sizes[1]
        for values in sizes[2]
        for warps in (2, 4, 8)
        for stages in (1, 2)
    ]


CASES = (
    Case("64 none", torch.bfloat16, {"K": 64, "V": 64, "C": 64, "DECAY": 0}),
    Case("128 per head", torch.bfloat16, {"K": 128, "V": 128, "C": 64, "DECAY": 1}),
    Case("65 per head tiled", torch.bfloat16, {"K": 64, "V": 65, "C": 256, "DECAY": 1}),
    Case("64 per channel", torch.bfloat16, {"K": 64, "V": 64, "C": 16, "DECAY": 2}),
    Case("64 per head exact", torch.float32, {"K": 64, "V": 64, "C": 64, "DECAY": 1}),
)
"""What is compiled ahead of time of every kernel of linear attention."""
