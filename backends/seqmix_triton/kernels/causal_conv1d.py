"""Short depthwise causal convolution, forward and backward.

B batch, D channels, S sequence, W taps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = ["CONV_ADJOINT", "CONV_FORWARD", "CONV_SLOPE"]


@triton.jit
def _before(
    x, tail, weight, bias, x_d, x_s, S, channels, begin, channel, token,
    W: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What is activated, ``[channels, tokens]``; pointers lead to the block's first channel."""
    own = channel < channels
    total = tl.zeros([channel.shape[0], token.shape[0]], ACC)
    for tap in tl.static_range(W):
        shifted = token - (W - 1 - tap)
        here = _input(x, tail, x_d, x_s, S, channels, begin, channel, shifted, W, ACC)
        by = tl.load(weight + channel * W + tap, mask=own, other=0.0).to(ACC)
        total += here * by[:, None]
    if bias is not None:
        total += tl.load(bias + channel, mask=own, other=0.0).to(ACC)[:, None]
    return total


@triton.jit
def _input(
    x, tail, x_d, x_s, S, channels, begin, channel, token,
    W: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Inputs at ``begin + token``, which may be negative: those come from the tail.

    Within a block 32 bits are enough for an offset, which saves registers.
    """
    own = (channel < channels)[:, None]
    place = begin + token
    inside = own & ((place >= 0) & (place < S))[None, :]
    at = channel[:, None] * x_d + token[None, :] * x_s
    here = tl.load(x + begin.to(tl.int64) * x_s + at, mask=inside, other=0.0).to(ACC)
    if W > 1:
        old = channel[:, None] * (W - 1) + (place + W - 1)[None, :]
        past = own & ((place < 0) & (place >= 1 - W))[None, :]
        here += tl.load(tail + old, mask=past, other=0.0).to(x.dtype.element_ty).to(ACC)
    return here


@triton.jit(do_not_specialize=["S"])
def conv_forward(
    x, weight, bias, tail, y, last, x_b, x_d, x_s, S, D,
    W: tl.constexpr, SILU: tl.constexpr, ACC: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One program per block of tokens and channels; those at the start write the new tail too."""
    b = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BLOCK_D
    begin = tl.program_id(0) * BLOCK_S
    channel, token = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    row, channels = b * D + first, D - first
    x += b * x_b + first.to(tl.int64) * x_d
    tail += row * (W - 1)
    weight += first * W
    if bias is not None:
        bias += first
    total = _before(
        x, tail, weight, bias, x_d, x_s, S, channels, begin, channel, token, W, ACC
    )  # fmt: skip
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    inside = (channel < channels)[:, None] & (begin + token < S)[None, :]
    to = y + row * S + begin + channel[:, None] * S + token[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        slot = tl.arange(0, BLOCK_W)
        kept = _input(
            x, tail, x_d, x_s, S, channels, S - (W - 1) + begin, channel, slot, W, ACC
        )  # fmt: skip
        new = (channel < channels)[:, None] & (slot < W - 1)[None, :]
        end = last + row * (W - 1) + channel[:, None] * (W - 1) + slot[None, :]
        tl.store(end, kept.to(last.dtype.element_ty), mask=new)


@triton.jit(do_not_specialize=["S"])
def conv_slope(
    grad, x, weight, bias, tail, slope, dweight, dbias, x_b, x_d, x_s, S, D,
    W: tl.constexpr, SILU: tl.constexpr, ACC: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The gradient before the activation, and each program's share of those of the parameters.

    ``dweight [W, D]`` and ``dbias [D]`` for each pair of a sequence and a block of tokens.
    """
    b = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BLOCK_D
    begin = tl.program_id(0) * BLOCK_S
    channel, token = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    row, channels = b * D + first, D - first
    own = channel < channels
    inside = own[:, None] & (begin + token < S)[None, :]
    at = channel[:, None] * S + token[None, :]
    g = tl.load(grad + row * S + begin + at, mask=inside, other=0.0).to(ACC)
    x += b * x_b + first.to(tl.int64) * x_d
    tail += row * (W - 1)
    weight += first * W
    if bias is not None:
        bias += first
    if SILU:
        before = _before(
            x, tail, weight, bias, x_d, x_s, S, channels, begin, channel, token, W, ACC
        )  # fmt: skip
        gate = 1.0 / (1.0 + tl.exp(-before))
        g = g * gate * (1.0 + before * (1.0 - gate))
        tl.store(slope + row * S + begin + at, g, mask=inside)
    part = b * tl.num_programs(0) + tl.program_id(0)
    if dweight is not None:
        for tap in tl.static_range(W):
            shifted = token - (W - 1 - tap)
            here = _input(x, tail, x_d, x_s, S, channels, begin, channel, shifted, W, ACC)
            to = dweight + (part * W + tap) * D + first + channel
            tl.store(to, tl.sum(g * here, 1), mask=own)
    if dbias is not None:
        tl.store(dbias + part * D + first + channel, tl.sum(g, 1), mask=own)


@triton.jit(do_not_specialize=["S"])
def conv_adjoint(
    slope, weight, dlast, dx, dtail, S, D,
    W: tl.constexpr, ACC: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The gradient of the inputs from the tail's first to the last: taps run the other way."""
    b = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BLOCK_D
    # Inputs are counted from the first of the tail, which is W - 1 before the sequence.
    begin = tl.program_id(0) * BLOCK_S
    channel, place = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    own = channel < D - first
    row = b * D + first
    at = channel[:, None] * S + place[None, :]
    slope += row * S + begin
    total = tl.zeros([BLOCK_D, BLOCK_S], ACC)
    for tap in tl.static_range(W):
        token = begin + place - tap
        inside = own[:, None] & ((token >= 0) & (token < S))[None, :]
        by = tl.load(weight + (first + channel) * W + tap, mask=own, other=0.0).to(ACC)
        here = tl.load(slope + at - tap, mask=inside, other=0.0).to(ACC)
        total += here * by[:, None]
    token = begin + place - (W - 1)
    if W > 1:
        beyond = token - (S - (W - 1))
        kept = own[:, None] & ((beyond >= 0) & (beyond < W - 1))[None, :]
        end = row * (W - 1) + channel[:, None] * (W - 1)
        total += tl.load(dlast + end + beyond[None, :], mask=kept, other=0.0).to(ACC)
        old = own[:, None] & (token < 0)[None, :]
        to = dtail + end + (begin + place)[None, :]
        tl.store(to, total.to(dtail.dtype.element_ty), mask=old)
    new = own[:, None] & ((token >= 0) & (token < S))[None, :]
    tl.store(dx + row * S + begin + at - (W - 1), total.to(dx.dtype.element_ty), mask=new)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_D": 8, "BLOCK_S": 128, **_tail(constants)}, 4, 1)


def _default_backward(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_D": 8, "BLOCK_S": 128}, 4, 1)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        Config({"BLOCK_D": d, "BLOCK_S": s, **_tail(constants)}, warps, 1)
        for d, s in ((64, 1), (64, 16), (32, 64), (16, 128), (4, 512))
        for warps in (2, 4)
    ]


def _tail(constants: Constants) -> dict[str, int]:
    return {"BLOCK_W": power_of_two(constants["W"] - 1)}


_INPUT = {"x_b": "s", "x_d": "s", "x_s": "1", "S": "i", "D": "i"}
_SILU = {"W": 4, "SILU": True}

CONV_FORWARD = Kernel(
    conv_forward,
    {"x": "T", "weight": "T", "bias": "T", "tail": "T", "y": "T", "last": "T", **_INPUT},
    _default,
    (Case("4 silu", torch.bfloat16, _SILU), Case("3", torch.float32, {"W": 3, "SILU": False})),
    _space,
)
CONV_SLOPE = Kernel(
    conv_slope,
    {
        "grad": "T",
        "x": "T",
        "weight": "T",
        "bias": "T",
        "tail": "T",
        "slope": "A",
        "dweight": "A",
        "dbias": "A",
        **_INPUT,
    },
    _default_backward,
    (Case("4 silu", torch.bfloat16, _SILU),),
    counted=("BLOCK_S",),
)
CONV_ADJOINT = Kernel(
    conv_adjoint,
    {"slope": "A", "weight": "T", "dlast": "T", "dx": "T", "dtail": "T", "S": "i", "D": "i"},
    _default_backward,
    (Case("4", torch.bfloat16, {"W": 4}),),
)
