"""The gates of the mLSTM cell, as logarithms of factors that are at most 1, and their gradients.

B batch, H heads, S sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seqmix.ops import linear_scan
from seqmix_xlstm.mlstm_forms import HIGHEST, LOWEST

__all__ = ["Gates", "cell_gates", "divisor", "gate_grads", "preactivations"]


@dataclass(frozen=True)
class Gates:
    """What the cell multiplies with, all ``[B, H, S]`` and in the dtype of the sums.

    ``log_decay`` g is what remains of the state, ``log_weight`` w what a new token counts, ``m``
    the stabiliser after each token and ``before`` the one before it; they are None where the input
    gate is a sigmoid. ``last [B, H]`` is the last m.
    """

    log_i: Tensor
    log_f: Tensor
    log_decay: Tensor
    log_weight: Tensor
    before: Tensor | None
    m: Tensor | None
    last: Tensor


def cell_gates(
    input_gate: Tensor, forget_gate: Tensor, m: Tensor, soft_cap: float, stabilised: bool
) -> Gates:
    """The gates of a whole sequence; with a stabiliser, ``m_t = max(log f_t + m_{t-1}, i_t)``."""
    log_i, log_f = preactivations(input_gate, forget_gate, m.dtype, soft_cap, stabilised)
    if not stabilised:
        return Gates(log_i, log_f, log_f, log_i, None, None, m)
    rows = log_f.transpose(1, 2), log_i.transpose(1, 2)
    found, last = linear_scan(rows[0], rows[1], m, semiring="max_plus")
    now = found.transpose(1, 2).clamp_min(LOWEST)
    before = torch.cat([m.unsqueeze(2), now[:, :, :-1]], 2)
    last = last.clamp_min(LOWEST)
    return Gates(log_i, log_f, log_f + before - now, log_i - now, before, now, last)


def preactivations(
    input_gate: Tensor, forget_gate: Tensor, wide: torch.dtype, soft_cap: float, stabilised: bool
) -> tuple[Tensor, Tensor]:
    """Logarithms of the input and of the forget gate; the former may be above 0."""
    log_i, f = input_gate, forget_gate
    if log_i.dtype != wide or f.dtype != wide:
        log_i, f = log_i.to(wide), f.to(wide)
    if soft_cap:
        log_i, f = _capped(torch.stack((log_i, f)), soft_cap).unbind()
    return (log_i if stabilised else logsigmoid(log_i)), logsigmoid(f)


def divisor(reads: Tensor, m: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None]:
    """``max(|n . q|, exp(-m)) + eps``, or ``max(|n . q|, 1)`` without m; and ``exp(-m)``.

    ``exp(-m)`` stays finite: where it would overflow, h is 0 all the same, and its gradient is no
    NaN.
    """
    size = reads.abs()
    if m is None:
        return size.clamp_min_(1.0), None
    floor = m.neg().clamp_max_(HIGHEST["f64" if m.dtype == torch.float64 else "f32"]).exp_()
    return torch.maximum(size, floor).add_(eps), floor


def gate_grads(
    gates: Gates,
    soft_cap: float,
    raw: tuple[Tensor, Tensor],
    of_decay: Tensor,
    of_weight: Tensor,
    of_m: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input gate, the forget gate and the first m.

    ``raw`` are both gates as given; ``of_decay`` and ``of_weight`` are the gradients of g and w
    with all m held fixed, ``of_m`` those of each m with all else that it enters.
    """
    of_decay = of_decay.masked_fill(gates.log_decay == -torch.inf, 0.0)
    of_i, of_f, first = of_weight, of_decay, torch.zeros_like(gates.last)
    if gates.before is None or of_m is None:
        of_i = of_i * -torch.expm1(gates.log_i)
    else:
        kept, added = _through_max(gates, gates.before, of_m)
        of_i, of_f = of_i + added, of_f + kept
        first = of_f[:, :, 0]
    # The derivative of log(sigmoid(x)) is 1 - sigmoid(x).
    of_f = of_f * -torch.expm1(gates.log_f)
    if soft_cap:
        of_i, of_f = (g * _cap_slope(x, soft_cap) for g, x in zip((of_i, of_f), raw, strict=True))
    return of_i, of_f, first


def _through_max(gates: Gates, before: Tensor, of_m: Tensor) -> tuple[Tensor, Tensor]:
    """What reaches ``log f`` and i of each token from every later m, by the side that won."""
    won = (gates.log_f + before > gates.log_i).to(of_m.dtype)
    passed = torch.cat([torch.zeros_like(won[:, :, :1]), won.flip(2)[:, :, :-1]], 2)
    rows = passed.transpose(1, 2), of_m.flip(2).transpose(1, 2)
    total, _ = linear_scan(rows[0], rows[1], torch.zeros_like(gates.last))
    total = total.transpose(1, 2).flip(2)
    kept = won * total
    return kept, total - kept


def _capped(gate: Tensor, cap: float) -> Tensor:
    """``cap * tanh(gate / cap)``; infinities mark padding and stay."""
    return torch.where(gate.isinf(), gate, (gate / cap).tanh_().mul_(cap))


def _cap_slope(gate: Tensor, cap: float) -> Tensor:
    return 1.0 - (gate / cap).tanh_().square_()
