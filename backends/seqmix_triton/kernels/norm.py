"""Normalization of rows: root mean square, or mean and variance; forward and backward.

D size of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = ["NORM_BACKWARD", "NORM_FORWARD"]


@triton.jit(do_not_specialize=["rows"])
def norm_forward(
    x, weight, bias, y, mean, scale, rows,
    D: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each program normalizes BLOCK_R rows; ``scale`` is what each is multiplied by."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (column < D)[None, :]
    at = row[:, None] * D + column[None, :]
    v = tl.load(x + at, mask=inside, other=0.0).to(ACC)
    if CENTRED:
        centre = tl.sum(v, 1) / D
        tl.store(mean + row, centre, mask=row < rows)
        v = tl.where(inside, v - centre[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(v * v, 1) / D + EPS)
    tl.store(scale + row, factor, mask=row < rows)
    v = v * factor[:, None]
    if weight is not None:
        v = v * tl.load(weight + column, mask=column < D, other=0.0).to(ACC)[None, :]
    if bias is not None:
        v = v + tl.load(bias + column, mask=column < D, other=0.0).to(ACC)[None, :]
    tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_backward(
    grad, x, weight, mean, scale, dx, dweight, dbias, rows,
    D: tl.constexpr, CENTRED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each program takes every n-th block of rows, and sums its share of the parameters' gradients.

    ``dweight`` and ``dbias`` are ``[programs, D]``.
    """
    column = tl.arange(0, BLOCK_D)
    of_weight = tl.zeros([BLOCK_D], ACC)
    of_bias = tl.zeros([BLOCK_D], ACC)
    factor = tl.full([BLOCK_D], 1.0, ACC)
    if weight is not None:
        factor = tl.load(weight + column, mask=column < D, other=0.0).to(ACC)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK_R), tl.num_programs(0)):
        row = (block * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < D)[None, :]
        at = row[:, None] * D + column[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        v = tl.load(x + at, mask=inside, other=0.0).to(ACC)
        if CENTRED:
            centre = tl.load(mean + row, mask=row < rows, other=0.0)
            v = tl.where(inside, v - centre[:, None], 0.0)
        by = tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
        v = v * by
        of_weight += tl.sum(g * v, 0)
        of_bias += tl.sum(g, 0)
        g = g * factor[None, :]
        change = g - v * (tl.sum(g * v, 1) / D)[:, None]
        if CENTRED:
            change = change - (tl.sum(g, 1) / D)[:, None]
        tl.store(dx + at, (change * by).to(dx.dtype.element_ty), mask=inside)
    to = tl.program_id(0).to(tl.int64) * D + column
    if dweight is not None:
        tl.store(dweight + to, of_weight, mask=column < D)
    if dbias is not None:
        tl.store(dbias + to, of_bias, mask=column < D)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    width = power_of_two(constants["D"])
    warps = min(16, max(1, width // 512))
    return Config({"BLOCK_R": max(1, min(16, 1024 // width)), "BLOCK_D": width}, warps, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    width = power_of_two(constants["D"])
    rows = [r for r in (1, 2, 4, 8) if r * width <= 16384]
    return [Config({"BLOCK_R": r, "BLOCK_D": width}, w, 1) for r in rows for w in (2, 4, 8)]


_RMS = {"D": 1024, "CENTRED": False}
_LAYER = {"D": 4096, "CENTRED": True}

NORM_FORWARD = Kernel(
    norm_forward,
    {"x": "T", "weight": "T", "bias": "T", "y": "T", "mean": "A", "scale": "A", "rows": "i"},
    _default,
    (
        Case("rms 1024", torch.bfloat16, {**_RMS, "EPS": 1e-6}, ("bias", "mean")),
        Case("layer 4096", torch.bfloat16, {**_LAYER, "EPS": 1e-5}),
    ),
    _space,
)
NORM_BACKWARD = Kernel(
    norm_backward,
    {
        "grad": "T",
        "x": "T",
        "weight": "T",
        "mean": "A",
        "scale": "A",
        "dx": "T",
        "dweight": "A",
        "dbias": "A",
        "rows": "i",
    },
    _default,
    (
        Case("rms 1024", torch.bfloat16, _RMS, ("mean", "dbias")),
        Case("layer 4096", torch.bfloat16, _LAYER),
    ),
    _space,
)
