"""The sLSTM cell in torch, with its own backward pass.

B batch, S sequence, H heads, D width of a head. Inside, everything is ``[S, H, B, ..]``: the
product of h with the heads' matrices then reads and writes contiguous memory in every step.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from seqmix.errors import ConfigError
from seqmix.flops import flop_formula
from seqmix.op import op
from seqmix.threads import one_thread
from seqmix_ir.dims import Size
from seqmix_ir.ops.precision import wider_dtype
from seqmix_ir.types import TensorType
from seqmix_xlstm.slstm_backward import slstm_backward
from seqmix_xlstm.slstm_op import FORGET_GATES, Slstm
from seqmix_xlstm.slstm_scan import NOTHING

__all__ = ["slstm"]

_LINEAR = 50.0
"""Where exp(-x) is below the last digit of x, in float64 too."""


def slstm(
    gates: Tensor,
    recurrent: Tensor,
    h: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    valid: Tensor | None = None,
    *,
    forget: Literal["sigmoid", "exp"] = "sigmoid",
    clip: float = 10.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the cell; returns ``y [B, S, H, D]`` and the next h, c, n and m.

    ``gates [B, S, H, 4, D]`` are W x + b for i~, f~, z~ and o~, in that order; ``recurrent [H, D,
    4, D]`` (from, gate, to) mixes the last h of each head into them. The states are ``[B, H, D]``,
    zeros at the start, float32 where the gates are 16-bit; everything is computed in float32
    (float64 for float64). Where ``valid [B, S]`` is false, y is 0 and the states stay the same.

    The backward pass is that of equations 41 to 51; what flows back from the gates through R to h
    is clipped to ``[-clip, clip]`` (0: not at all) before the gradient of y is added. Gradients of
    the states are true: c, n and m mean ``c exp(m)`` and ``n exp(m)``, so that the one of m is
    ``c dc + n dn`` for any loss of y, and 0 where the state is empty. A loss of the next c, n or m
    that is more than one of those products (m itself, say) follows the winner of the maximum.

    Raises ConfigError for an unknown ``forget`` or a negative ``clip``.
    """
    if forget not in FORGET_GATES:
        raise ConfigError(f"slstm: forget is {forget!r}, expected one of {FORGET_GATES}")
    if not clip >= 0:
        raise ConfigError(f"slstm: clip is {clip}, expected a limit above 0, or 0 for none")
    y, h, c, n, m = _SLSTM(gates, recurrent, h, c, n, m, valid, forget=forget, clip=clip)
    return y, h, c, n, m


def _forward(
    gates: Tensor,
    recurrent: Tensor,
    h: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    valid: Tensor | None,
    *,
    forget: str = "sigmoid",
    clip: float = 10.0,
) -> tuple[Tensor, ...]:
    """The results; then, for the backward pass, what the loop has left in its memory.

    That is all states ``[S + 1, 4, H, B, D]``, f~ and z~ before activation and the output gate
    ``[S, H, B, 4 D]``, and the weights i and f ``[S, 2, H, B, D]``.
    """
    if valid is not None and bool(valid.all()):
        # A kernel may look: without padding each token takes one call less.
        valid = None
    B, S, H, _, D = gates.shape
    wide = torch.promote_types(gates.dtype, torch.float32)
    states = gates.new_empty((S + 1, 4, H, B, D), dtype=wide)
    states[0] = torch.stack([h, c, n, m]).transpose(1, 2)
    fresh = (states[0, 1:3] == 0).all(0)
    states[0, 3].masked_fill_(fresh, NOTHING)
    # Of torch's copies, only this one never shares memory with the operand.
    pre = gates.new_empty((S, H, B, 4, D), dtype=wide).copy_(gates.permute(1, 2, 0, 3, 4))
    weights = gates.new_empty((S, 2, H, B, D), dtype=wide)
    mask = None if valid is None else valid.t()[:, None, :, None]
    matrix = recurrent.to(wide).reshape(H, D, 4 * D)
    with one_thread(B * matrix.numel()):
        _run(pre, matrix, states, weights, mask, forget == "sigmoid")
    *last, m_last = states[-1].transpose(1, 2).unbind()
    if valid is not None:
        untouched = (fresh & (states[-1, 3] == NOTHING)).transpose(0, 1)
        m_last = torch.where(untouched, m, m_last)
    after = (_copy(state, h.dtype) for state in (*last, m_last))
    y = states[1:, 0] if mask is None else states[1:, 0] * mask
    y = _copy(y.permute(2, 0, 1, 3), gates.dtype)
    return y, *after, states, pre.view(S, H, B, 4 * D), weights


def _copy(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)


def _run(
    pre: Tensor,
    matrix: Tensor,
    states: Tensor,
    weights: Tensor,
    mask: Tensor | None,
    sigmoid: bool,
) -> None:
    """The loop: fills ``states`` and ``weights``, and ``pre`` with what the backward pass needs.

    Per token a dozen calls on a few buffers that stay in the cache; their number is what costs.
    Views are calls too, so that one token's are taken once for all, and its results copied out.
    """
    now = states[0].clone()
    h, c, n, m = now.unbind()
    cn = now[1:3]
    gates = torch.empty_like(pre[0])
    i_, f_, z_, o_ = gates.unbind(2)
    weight = torch.empty_like(weights[0])
    i, f = weight.unbind()
    ratio = torch.empty_like(h)
    # z and, for n, 1: what the input weight adds to c and n.
    added = torch.ones_like(cn)
    flat, z = gates.flatten(2), added[0]
    before, *every = states.unbind()
    for t, (given, new, pair) in enumerate(
        zip(pre.flatten(3).unbind(), every, weights.unbind(), strict=True)
    ):
        torch.baddbmm(given, h, matrix, out=flat)
        if sigmoid:
            # With beta -1 softplus is the log of the sigmoid, in one call instead of four.
            squashed = softplus(f_, -1.0, _LINEAR, out=f)  # type: ignore[call-arg]  # stub lacks out
            torch.add(m, squashed, out=f)
        else:
            torch.add(f_, m, out=f)
        torch.maximum(i_, f, out=m)
        torch.sub(i_, m, out=i)
        f.sub_(m)
        weight.exp_()
        torch.tanh(z_, out=z)
        cn.mul_(f).addcmul_(i, added)
        torch.div(c, n, out=ratio)
        torch.mul(ratio, o_.sigmoid_(), out=h)
        if mask is not None:
            torch.where(mask[t], now, before, out=now)
        given.copy_(flat)
        pair.copy_(weight)
        before = new.copy_(now)


def _steps(defn: Slstm, gates: TensorType, *shape: Size) -> TensorType:
    return TensorType(wider_dtype(gates.dtype), shape)


def _states(defn: Slstm, gates: TensorType, *_: TensorType | None) -> TensorType:
    B, S, H, _four, D = gates.shape
    return _steps(defn, gates, S + 1, 4, H, B, D)


def _activated(defn: Slstm, gates: TensorType, *_: TensorType | None) -> TensorType:
    B, S, H, _four, D = gates.shape
    return _steps(defn, gates, S, H, B, 4 * D)


def _weights(defn: Slstm, gates: TensorType, *_: TensorType | None) -> TensorType:
    B, S, H, _four, D = gates.shape
    return _steps(defn, gates, S, 2, H, B, D)


@flop_formula("xlstm_slstm")
def _flops(gates: tuple[int, ...], recurrent: tuple[int, ...], *_: object, **more: object) -> int:
    """The last h goes into four gates, in every step."""
    return 2 * gates[0] * gates[1] * math.prod(recurrent)


_SLSTM = op(
    Slstm,
    eager=_forward,
    backward=slstm_backward,
    saved={"states": _states, "activated": _activated, "weights": _weights},
)
