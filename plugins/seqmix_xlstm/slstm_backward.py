"""The backward pass of the sLSTM cell: equations 41 to 51 of the paper (Beck et al. 2024).

Every gradient is linear in those of h, c and n, with factors that are known when the forward pass
is over. The factors are computed for all tokens at once, so that the loop is a few products with
them, and the gradient of R is one product after the loop.

With m a constant in every step all gradients through h are right, as no y depends on m. What
remains is the gradient of losses that do see m. It is one number per element, as long as the same
side wins the maximum: it wanders back unchanged while the forget gate wins, to the first token from
behind where the input gate does, and ends there.

B batch, S sequence, H heads, D width of a head; inside, ``[S, H, B, ..]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seqmix.threads import one_thread
from seqmix_xlstm.slstm_op import LARGEST_EXPONENT

__all__ = ["slstm_backward"]


def slstm_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    forget: str = "sigmoid",
    clip: float = 10.0,
) -> list[Tensor | None]:
    """The gradients of gates, R and the four states; the mask has none."""
    gates, recurrent, h, _, _, m, valid = operands
    if gates is None or recurrent is None or h is None or m is None:
        raise TypeError("slstm: gates, recurrent and the states are needed")
    mask = None if valid is None else valid.t()[:, None, :, None]
    states, activated, weights = outputs[5:]
    run = _Run(states, activated, weights, mask, forget == "sigmoid")
    last = torch.stack(grads[1:5]).transpose(1, 2).to(run.states.dtype)
    dy = _like(grads[0].permute(1, 2, 0, 3), run.states)
    if mask is not None:
        dy.masked_fill_(~mask, 0.0)
    factors = _factors(run)
    if needs[3] or needs[4]:
        factors.f = _with_first_forget(run, factors.f, m)
    through_m, dm = _through_m(run, last)
    matrix = recurrent.to(dy.dtype).flatten(2)
    with one_thread(gates.shape[0] * matrix.numel()):
        dh, dcn = _run_back(run, factors, dy, last, through_m, matrix.mT, clip)
    dm = dm + (run.states[0, 1:3] * dcn).sum(0)
    d_states = [d.transpose(0, 1).to(h.dtype) for d in (dh, *dcn, dm)]
    d_gates = _parts(factors.gates, 4).permute(2, 0, 1, 3, 4).to(gates.dtype)
    d_recurrent = _matrix_grad(run, factors.gates) if needs[1] else None
    if d_recurrent is not None:
        d_recurrent = d_recurrent.view_as(recurrent).to(recurrent.dtype)
    return [d_gates, d_recurrent, *d_states, None]


@dataclass
class _Run:
    """What the forward pass has left: see there. ``mask [S, 1, B, 1]`` is false at padding."""

    states: Tensor
    activated: Tensor
    weights: Tensor
    mask: Tensor | None
    sigmoid: bool

    def gate(self, place: int) -> Tensor:
        """``[S, H, B, D]``: a gate by its place among i, f, z, o."""
        return _parts(self.activated, 4)[:, :, :, place]

    def forget_slope(self) -> Tensor:
        """The derivative of log f by f~: f' / f of the paper."""
        f = self.gate(1)
        return torch.sigmoid(-f) if self.sigmoid else torch.ones_like(f)


@dataclass
class _Factors:
    """By what the gradients of h, c and n are multiplied, for every token."""

    gates: Tensor
    """``[S, H, B, 4 D]``: i~, f~, z~ of dc and o~ of dh; the loop leaves gradients there."""
    n: Tensor
    """``[S, H, B, 2 D]``: i~ and f~ of dn."""
    cn: Tensor
    """``[S, 2, H, B, D]``: dc and dn of dh."""
    f: Tensor
    """``[S, H, B, D]``: dc and dn of those of the next token."""


def _factors(run: _Run) -> _Factors:
    """Equations 42 to 47, without the gradients in them; 0 (f: 1) at padding."""
    i, f = run.weights.unbind(1)
    z, o = torch.tanh(run.gate(2)), run.gate(3)
    c, n = run.states[1:, 1], run.states[1:, 2]
    ratio, o_n = c / n, o / n
    cn = torch.stack([o_n, -o_n * ratio], 1)
    slope = f * run.forget_slope()
    of_c = [i * z, slope * run.states[:-1, 1], i * (1 - z * z), o * (1 - o) * ratio]
    gates = torch.cat(of_c, 3)
    of_n = torch.cat([i, slope * run.states[:-1, 2]], 3)
    if run.mask is not None:
        padding = ~run.mask
        for factor in (gates, of_n):
            factor.masked_fill_(padding, 0.0)
        cn.masked_fill_(padding.unsqueeze(1), 0.0)
        f = f.masked_fill(padding, 1.0)
    return _Factors(gates, of_n, cn, f)


def _with_first_forget(run: _Run, f: Tensor, m: Tensor) -> Tensor:
    """The forget weights, with those of empty elements what they would be to a c or n.

    The forward pass has 0 there, as nothing is kept. The gradients of c and n are not 0: a little
    of either would be kept.
    """
    fresh = (run.states[0, 1] == 0) & (run.states[0, 2] == 0)
    if run.mask is None:
        here, where = slice(0, 1), fresh.unsqueeze(0)
    else:
        here, where = slice(None), fresh & run.mask & (run.mask.cumsum(0) == 1)
    log_f = run.gate(1)[here]
    log_f = logsigmoid(log_f) if run.sigmoid else log_f
    exponent = log_f + m.transpose(0, 1).to(f.dtype) - run.states[1:, 3][here]
    f = f.clone()
    f[here] = torch.where(where, exponent.clamp(max=LARGEST_EXPONENT).exp(), f[here])
    return f


def _through_m(run: _Run, last: Tensor) -> tuple[Tensor | None, Tensor]:
    """Gradients of i~ and f~ ``[S, H, B, 2 D]`` and of the first m from what sees the last m.

    ``last [4, H, B, D]`` are those of the last states. What c and n scale like m takes none.
    """
    g = last[3] - (run.states[-1, 1:3] * last[1:3]).sum(0)
    if not g.any():
        return None, g
    kept = run.weights[:, 0] < 1
    if run.mask is not None:
        kept |= ~run.mask
    # One row more: behind the last token everything is still to come.
    kept = torch.cat([kept, torch.ones_like(kept[:1])])
    alive = kept.flip(0).to(g.dtype).cumprod(0).flip(0) * g
    to_f = alive[:-1] * run.forget_slope()
    if run.mask is not None:
        to_f.masked_fill_(~run.mask, 0.0)
    return torch.cat([alive[1:] - alive[:-1], to_f], 3), alive[0]


def _run_back(
    run: _Run,
    factors: _Factors,
    dy: Tensor,
    last: Tensor,
    through_m: Tensor | None,
    matrix: Tensor,
    clip: float,
) -> tuple[Tensor, Tensor]:
    """The loop from the end: gradients of the first h ``[H, B, D]`` and of c and n.

    ``dy`` and the factors of the gates are overwritten with the gradients of h and of the gates.
    """
    dh, dcn = last[0].clone(memory_format=torch.contiguous_format), last[1:3].clone()
    dc, dn = dcn.unsqueeze(3).unbind()
    parts = _parts(factors.gates, 4)
    of_c, if_, o = parts[:, :, :, :3].unbind(), parts[:, :, :, :2].unbind(), parts.unbind(3)[3]
    of_n = _parts(factors.n, 2).unbind()
    extra = None if through_m is None else _parts(through_m, 2).unbind()
    every = zip(
        factors.gates.unbind(), of_c, if_, o.unbind(), of_n, factors.cn, factors.f, dy, strict=True
    )
    for t, (gates, for_dc, pair, out, for_dn, for_dh, f, grad) in reversed(list(enumerate(every))):
        grad.add_(dh)
        dcn.addcmul_(for_dh, grad)
        for_dc.mul_(dc)
        pair.addcmul_(for_dn, dn)
        out.mul_(grad)
        if extra is not None:
            pair.add_(extra[t])
        torch.bmm(gates, matrix, out=dh)
        if clip:
            dh.clamp_(-clip, clip)
        if run.mask is not None:
            torch.where(run.mask[t], dh, grad, out=dh)
        dcn.mul_(f)
    return dh, dcn


def _matrix_grad(run: _Run, gates: Tensor) -> Tensor:
    """Equation 50: ``[H, D, 4 D]``, one product over all tokens of all rows."""
    H, D = run.states.shape[2], run.states.shape[4]
    h = run.states[:-1, 0].permute(1, 3, 0, 2).reshape(H, D, -1)
    return h @ gates.permute(1, 0, 2, 3).reshape(H, -1, 4 * D)


def _parts(x: Tensor, count: int) -> Tensor:
    """``[S, H, B, count D]`` as ``[S, H, B, count, D]``."""
    return x.view(*x.shape[:3], count, -1)


def _like(x: Tensor, model: Tensor) -> Tensor:
    """A copy of ``x`` in contiguous memory, of the dtype of ``model``."""
    return model.new_empty(x.shape).copy_(x)
