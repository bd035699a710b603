"""Rotation of pairs by given tables, and the gradients of the tables.

B batch, H heads, S sequence, K head size, R rotated size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = ["ROTARY", "ROTARY_TABLES"]


@triton.jit
def _columns(pair, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Where the two entries of each pair stand."""
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1
    return pair, pair + HALF


@triton.jit(do_not_specialize=["S", "H"])
def rotary(
    x, cos, sin, y, x_b, x_h, x_s, S, H,
    K: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    ACC: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One program per block of tokens of one head; ``BACKWARDS`` turns the other way."""
    head = tl.program_id(1).to(tl.int64)
    b, h = head // H, head % H
    token = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    row = token.to(tl.int64)
    pair = tl.arange(0, BLOCK_P)
    inside = (token < S)[:, None] & (pair < HALF)[None, :]
    table = (b * S + row)[:, None] * HALF + pair[None, :]
    c = tl.load(cos + table, mask=inside, other=0.0).to(ACC)
    s = tl.load(sin + table, mask=inside, other=0.0).to(ACC)
    if BACKWARDS:
        s = -s
    left, right = _columns(pair, HALF, INTERLEAVED)
    source = x + b * x_b + h * x_h + row[:, None] * x_s
    target = y + (head * S + row)[:, None] * K
    first = tl.load(source + left[None, :], mask=inside, other=0.0).to(ACC)
    second = tl.load(source + right[None, :], mask=inside, other=0.0).to(ACC)
    out = y.dtype.element_ty
    tl.store(target + left[None, :], (first * c - second * s).to(out), mask=inside)
    tl.store(target + right[None, :], (second * c + first * s).to(out), mask=inside)
    if K > 2 * HALF:
        rest = 2 * HALF + tl.arange(0, BLOCK_R)[None, :]
        kept = (token < S)[:, None] & (rest < K)
        tl.store(target + rest, tl.load(source + rest, mask=kept, other=0.0), mask=kept)


@triton.jit(do_not_specialize=["S", "H"])
def rotary_tables(
    grad, x, dcos, dsin, x_b, x_h, x_s, S, H,
    K: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Gradients of the tables: one program per block of tokens sums over its heads."""
    b = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    row = token.to(tl.int64)
    pair = tl.arange(0, BLOCK_P)
    inside = (token < S)[:, None] & (pair < HALF)[None, :]
    left, right = _columns(pair, HALF, INTERLEAVED)
    of_cos = tl.zeros([BLOCK_S, BLOCK_P], ACC)
    of_sin = tl.zeros([BLOCK_S, BLOCK_P], ACC)
    for h in range(H):
        source = x + b * x_b + h * x_h + row[:, None] * x_s
        given = grad + ((b * H + h) * S + row)[:, None] * K
        first = tl.load(source + left[None, :], mask=inside, other=0.0).to(ACC)
        second = tl.load(source + right[None, :], mask=inside, other=0.0).to(ACC)
        of_first = tl.load(given + left[None, :], mask=inside, other=0.0).to(ACC)
        of_second = tl.load(given + right[None, :], mask=inside, other=0.0).to(ACC)
        of_cos += of_first * first + of_second * second
        of_sin += of_second * first - of_first * second
    to = (b * S + row)[:, None] * HALF + pair[None, :]
    tl.store(dcos + to, of_cos.to(dcos.dtype.element_ty), mask=inside)
    tl.store(dsin + to, of_sin.to(dsin.dtype.element_ty), mask=inside)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    pairs = power_of_two(constants["HALF"])
    tokens = max(1, min(32, 2048 // pairs))
    return Config({"BLOCK_S": tokens, "BLOCK_P": pairs, "BLOCK_R": _rest(constants)}, 4, 1)


def _default_tables(dtype: torch.dtype, constants: Constants) -> Config:
    pairs = power_of_two(constants["HALF"])
    return Config({"BLOCK_S": max(1, min(16, 1024 // pairs)), "BLOCK_P": pairs}, 4, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    pairs, rest = power_of_two(constants["HALF"]), _rest(constants)
    return [
        Config({"BLOCK_S": tokens, "BLOCK_P": pairs, "BLOCK_R": rest}, warps, 1)
        for tokens in (8, 16, 32, 64)
        for warps in (2, 4, 8)
    ]


def _rest(constants: Constants) -> int:
    return power_of_two(constants["K"] - 2 * constants["HALF"])


_STRIDES = {"x_b": "s", "x_h": "s", "x_s": "s"}
_SIZES = {"S": "i", "H": "i"}
_HEAD = {"K": 128, "HALF": 64, "INTERLEAVED": False}

ROTARY = Kernel(
    rotary,
    {"x": "T", "cos": "A", "sin": "A", "y": "T", **_STRIDES, **_SIZES},
    _default,
    (
        Case("128 half", torch.bfloat16, {**_HEAD, "BACKWARDS": False}),
        Case(
            "64 of 80 interleaved",
            torch.bfloat16,
            {"K": 80, "HALF": 32, "INTERLEAVED": True, "BACKWARDS": True},
        ),
    ),
    _space,
)
ROTARY_TABLES = Kernel(
    rotary_tables,
    {"grad": "T", "x": "T", "dcos": "A", "dsin": "A", **_STRIDES, **_SIZES},
    _default_tables,
    (Case("128 half", torch.bfloat16, _HEAD),),
    hot=False,
)
