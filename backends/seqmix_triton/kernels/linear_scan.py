"""First-order recurrences along the sequence over (+, *) and (max, +), forward and backward.

B batch, S sequence, D channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel

__all__ = ["SCAN_BACKWARD", "SCAN_FORWARD"]


@triton.jit
def _then_linear(a, b, later_a, later_b):
    """``h -> a h + b`` and after it ``h -> later_a h + later_b``, as one such map."""
    return a * later_a, b * later_a + later_b


@triton.jit
def _then_max(a, b, later_a, later_b):
    """The same for ``h -> max(a + h, b)``."""
    return a + later_a, tl.maximum(b + later_a, later_b)


@triton.jit(do_not_specialize=["S"])
def scan_forward(
    a, b, initial, h, last, S, D,
    MAX_PLUS: tl.constexpr, ACC: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per block of channels; blocks of tokens are scanned one after the other."""
    n = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    own = channel < D
    state = tl.load(initial + n * D + channel, mask=own, other=0.0).to(ACC)
    place = tl.arange(0, BLOCK_S)
    for start in range(0, S, BLOCK_S):
        token = start + place
        inside = (token < S)[:, None] & own[None, :]
        at = (n * S + token)[:, None] * D + channel[None, :]
        # Beyond the end the map is the identity, so that the last state passes through it.
        step = tl.load(a + at, mask=inside, other=0.0 if MAX_PLUS else 1.0).to(ACC)
        added = tl.load(b + at, mask=inside, other=float("-inf") if MAX_PLUS else 0.0).to(ACC)
        if MAX_PLUS:
            step, added = tl.associative_scan((step, added), 0, _then_max)
            out = tl.maximum(step + state[None, :], added)
        else:
            step, added = tl.associative_scan((step, added), 0, _then_linear)
            out = step * state[None, :] + added
        tl.store(h + at, out.to(h.dtype.element_ty), mask=inside)
        state = tl.sum(tl.where(place[:, None] == BLOCK_S - 1, out, 0.0), 0)
    if last is not None:
        tl.store(last + n * D + channel, state.to(last.dtype.element_ty), mask=own)


@triton.jit
def _passed(a, b, h, initial, n, token, S, D, channel, MAX_PLUS: tl.constexpr, ACC: tl.constexpr):
    """What ``h[token - 1]`` passed by on its way to ``h[token]``, and that state itself."""
    inside = ((token >= 0) & (token < S))[:, None] & (channel < D)[None, :]
    at = (n * S + token)[:, None] * D + channel[None, :]
    factor = tl.load(a + at, mask=inside, other=0.0).to(ACC)
    earlier = inside & (token > 0)[:, None]
    before = tl.load(h + at - D, mask=earlier, other=0.0).to(ACC)
    first = tl.load(initial + n * D + channel, mask=channel < D, other=0.0).to(ACC)
    before = tl.where((token == 0)[:, None], first[None, :], before)
    if MAX_PLUS:
        rival = tl.load(b + at, mask=inside, other=0.0).to(ACC)
        factor = tl.where(factor + before > rival, 1.0, 0.0).to(ACC)
    return factor, before


@triton.jit(do_not_specialize=["S"])
def scan_backward(
    a, b, initial, h, grad, last_grad, da, db, dinitial, S, D,
    MAX_PLUS: tl.constexpr, ACC: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The adjoint ``g[t] = grad[t] + f[t+1] g[t+1]``, from the last block of tokens to the first.

    ``h`` holds the states unrounded.
    """
    n = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    own = channel < D
    place = tl.arange(0, BLOCK_S)
    state = tl.load(last_grad + n * D + channel, mask=own, other=0.0).to(ACC)
    blocks = tl.cdiv(S, BLOCK_S)
    for i in range(blocks):
        token = (blocks - 1 - i) * BLOCK_S + place
        inside = (token < S)[:, None] & own[None, :]
        at = (n * S + token)[:, None] * D + channel[None, :]
        factor, before = _passed(a, b, h, initial, n, token, S, D, channel, MAX_PLUS, ACC)
        onward, _ = _passed(a, b, h, initial, n, token + 1, S, D, channel, MAX_PLUS, ACC)
        # The last token, and what fills its block, hand on what comes from behind.
        onward = tl.where((token + 1 < S)[:, None], onward, 1.0)
        added = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        onward, added = tl.associative_scan((onward, added), 0, _then_linear, reverse=True)
        g = onward * state[None, :] + added
        state = tl.sum(tl.where(place[:, None] == 0, g, 0.0), 0)
        through = factor * g
        if MAX_PLUS:
            tl.store(da + at, through.to(da.dtype.element_ty), mask=inside)
            tl.store(db + at, (g - through).to(db.dtype.element_ty), mask=inside)
        else:
            tl.store(da + at, (g * before).to(da.dtype.element_ty), mask=inside)
            tl.store(db + at, g.to(db.dtype.element_ty), mask=inside)
        first = (token == 0)[:, None] & own[None, :]
        to = dinitial + n * D + channel[None, :] + tl.zeros([BLOCK_S, 1], tl.int32)
        tl.store(to, through.to(dinitial.dtype.element_ty), mask=first)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_S": 32, "BLOCK_D": 32}, 4, 2)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [
        Config({"BLOCK_S": s, "BLOCK_D": d}, warps, stages)
        for s, d in ((16, 32), (32, 16), (32, 32), (64, 16), (64, 32))
        for warps in (1, 2, 4)
        for stages in (2, 3)
    ]


_LINEAR, _MAX = {"MAX_PLUS": False}, {"MAX_PLUS": True}

SCAN_FORWARD = Kernel(
    scan_forward,
    {"a": "T", "b": "T", "initial": "A", "h": "T", "last": "A", "S": "i", "D": "s"},
    _default,
    (Case("+ *", torch.bfloat16, _LINEAR), Case("max +", torch.float32, _MAX)),
    _space,
)
SCAN_BACKWARD = Kernel(
    scan_backward,
    {
        "a": "T",
        "b": "T",
        "initial": "A",
        "h": "A",
        "grad": "T",
        "last_grad": "A",
        "da": "T",
        "db": "T",
        "dinitial": "A",
        "S": "i",
        "D": "s",
    },
    _default,
    (Case("+ *", torch.bfloat16, _LINEAR), Case("max +", torch.float32, _MAX)),
    _space,
)
