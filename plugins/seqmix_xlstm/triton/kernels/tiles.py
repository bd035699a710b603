"""What the kernels of the mLSTM cell share: states with a normalizer beside them, and the cases.

K key size, V value size; chunks of C tokens in tiles of L rows. A state is ``[K, V + 1]``: C, and
n as its last column. Its columns are read apart from n, so that no tile is cut for the sake of one.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants
from seqmix_triton.kernels.linear_attention_tiles import default, rows, slope_of_scores

__all__ = [
    "CASES",
    "before_chunk",
    "cases_of",
    "default_states",
    "factors",
    "normalizer",
    "slope_of_pairs",
    "state_tile",
    "write_slope",
]


@triton.jit
def state_tile(state, key, value, inside, V: tl.constexpr):
    """A tile of C."""
    return tl.load(state + key[:, None] * (V + 1) + value[None, :], mask=inside, other=0.0)


@triton.jit
def normalizer(state, key, inside, V: tl.constexpr):
    """The part of n that belongs to some keys."""
    return tl.load(state + key * (V + 1) + V, mask=inside, other=0.0)


@triton.jit
def before_chunk(state, states, head, heads, n, size):
    """The state before chunk n: the first one, or one of ``states [N - 1, B, H, K, V + 1]``."""
    if n == 0:
        found = state + head * size
    else:
        found = states + (tl.cast(n - 1, tl.int64) * heads + head) * size
    return found


@triton.jit
def factors(pointer, place, count):
    """One number per row of a tile, 0 beyond ``count``."""
    return tl.load(pointer + place, mask=place < count, other=0.0)


@triton.jit
def slope_of_pairs(
    grad, v, v_s, reads, count, others, place,
    V: tl.constexpr, NORMALIZE: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores of ``count`` queries with ``others`` keys times the divisor.

    A score counts a value, and 1 in the normalizer.
    """
    found = slope_of_scores(grad, v, v_s, count, others, place, V, ACC, DOT, PRECISION, BLOCK_V)
    if NORMALIZE:
        found += factors(reads, place, count)[:, None]
    return found


@triton.jit
def write_slope(
    found, slope, x, x_s, share, head, S, begin, place, count, key,
    K: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a tile of ``x``, queries or keys, and ``share``, its product with them.

    ``x`` points to the tile, ``share`` to the rows of these columns, ``[B, H, S]``.
    """
    inside = (place < count)[:, None] & (key < K)[None, :]
    at = (head * S + begin) * K + place[:, None] * K + key[None, :]
    tl.store(slope + at, found.to(slope.dtype.element_ty), mask=inside)
    product = found * rows(x, x_s, place, count, key, K).to(ACC)
    tl.store(share + head * S + begin + place, tl.sum(product, 1), mask=place < count)


def default_states(dtype: torch.dtype, constants: Constants) -> Config:
    """The default of a pass over the states, whose rows are V + 1 long and so start anywhere."""
    config = default(dtype, constants)
    large = config.tiles["BLOCK_K"] * config.tiles["BLOCK_V"] > 32 * 32
    return dataclasses.replace(config, warps=8 if large else 4)


def cases_of(fn: object) -> tuple[Case, ...]:
    """The shared cases with just the constants that a kernel takes."""
    names = set(getattr(fn, "arg_names", ()))
    return tuple(
        Case(c.label, c.dtype, {n: x for n, x in c.constants.items() if n in names}) for c in CASES
    )


def _constants(K: int, V: int, C: int, **more: object) -> Constants:
    known = {"STABLE": True, "NORMALIZE": True, "CAP": 0.0, "EPS": 1e-6}
    scales = {"SCALE_Q": K**-0.5, "SCALE_K": 1.0}
    return {"K": K, "V": V, "C": C, **scales, **known, **more}


CASES = (
    Case("64", torch.bfloat16, _constants(64, 64, 64)),
    Case("128 capped", torch.bfloat16, _constants(128, 128, 64, CAP=15.0)),
    Case("256 of 512 tiled", torch.bfloat16, _constants(256, 512, 128)),
    Case("64 sigmoid", torch.bfloat16, _constants(64, 64, 64, STABLE=False)),
    Case("64 exact", torch.float32, _constants(64, 64, 64)),
)
"""What is compiled ahead of time; of every kernel with the constants that it takes."""
