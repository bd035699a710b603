"""First-order recurrences along the sequence, ``h[t] = a[t] * h[t-1] + b[t]`` and over (max, +).

B batch, S sequence, D channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.op import op
from seqmix_ir.ops import LinearScan

__all__ = ["linear_scan"]

_SEMIRINGS = ("plus_times", "max_plus")
_UNROLLED = 6
"""Sequences up to this length go step by step: there the calls cost more than the work."""


def linear_scan(
    a: Tensor, b: Tensor, initial: Tensor, *, semiring: str = "plus_times"
) -> tuple[Tensor, Tensor]:
    """All ``h [B, S, D]`` and the last of them ``[B, D]``, from ``initial [B, D]``.

    ``semiring`` is "plus_times", ``h[t] = a[t] * h[t-1] + b[t]``, or "max_plus", ``h[t] =
    max(a[t] + h[t-1], b[t])``, where ``b`` and ``initial`` may be -inf. Computed in float32
    (float64 for float64); ``initial`` may be float32 beside narrower ``a`` and ``b``, and
    ``last`` has its dtype. The gradient of max goes to the winner, of a tie to ``b``.
    """
    if semiring not in _SEMIRINGS:
        raise ConfigError(f"semiring is {semiring!r}, expected one of {_SEMIRINGS}")
    h, last = _LINEAR_SCAN(a, b, initial, semiring=semiring)
    return h, last


def _forward(
    a: Tensor, b: Tensor, initial: Tensor, *, semiring: str = "plus_times"
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(a.dtype, torch.float32)
    h = a.new_empty(a.shape, dtype=wide)
    scan = _Scan(semiring)
    scan(a.to(wide), b.to(wide), initial.to(wide), h)
    return h.to(a.dtype), h[:, -1].to(initial.dtype, copy=True)


class _Scan:
    """Writes the scan of ``a`` and ``b`` into ``out``, all ``[B, S, D]`` and of one dtype."""

    def __init__(self, semiring: str) -> None:
        self._max_plus = semiring == "max_plus"

    def __call__(self, a: Tensor, b: Tensor, state: Tensor, out: Tensor) -> None:
        """Combine pairs of steps, scan the pairs, and fill in what lies between them.

        That is 5 elementwise passes in all, at a depth of 2 log S, without any subtraction.
        """
        S = a.shape[1]
        if S <= _UNROLLED:
            for t in range(S):
                state = self._step(a[:, t], state, b[:, t], out[:, t])
            return
        first, second = slice(0, S - S % 2, 2), slice(1, None, 2)
        both = a[:, first] + a[:, second] if self._max_plus else a[:, first] * a[:, second]
        both_b = torch.empty_like(both)
        self._step(a[:, second], b[:, first], b[:, second], both_b)
        ends = out[:, second]
        self(both, both_b, state, ends)
        self._step(a[:, 0], state, b[:, 0], out[:, 0])
        inner = slice(2, None, 2)
        before = ends[:, : (S - 1) // 2]
        self._step(a[:, inner], before, b[:, inner], out[:, inner])

    def _step(self, a: Tensor, state: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if self._max_plus:
            return torch.maximum(torch.add(a, state), b, out=out)
        return torch.addcmul(b, a, state, out=out)


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    semiring: str = "plus_times",
) -> list[Tensor | None]:
    """The adjoint runs backwards: ``g[t] = grad[t] + f[t+1] * g[t+1]``, with f what h passed by."""
    a, b, initial = operands
    wide = torch.promote_types(a.dtype, torch.float32)
    before = _states_before(a, b, initial, outputs[0], semiring)
    f = a.to(wide)
    if semiring == "max_plus":
        f = (f + before > b).to(wide)
    g = _adjoint(f, grads[0].to(wide), grads[1].to(wide))
    through = f * g
    if semiring == "max_plus":
        return [through.to(a.dtype), (g - through).to(b.dtype), through[:, 0].to(initial.dtype)]
    return [(g * before).to(a.dtype), g.to(b.dtype), through[:, 0].to(initial.dtype)]


def _states_before(a: Tensor, b: Tensor, initial: Tensor, h: Tensor, semiring: str) -> Tensor:
    """``h[t-1]`` for every t. Where h was rounded it is computed anew: it decides who won."""
    wide = torch.promote_types(a.dtype, torch.float32)
    if h.dtype != wide:
        h = a.new_empty(a.shape, dtype=wide)
        _Scan(semiring)(a.to(wide), b.to(wide), initial.to(wide), h)
    return torch.cat([initial.to(wide).unsqueeze(1), h[:, :-1]], dim=1)


def _adjoint(f: Tensor, grad: Tensor, last_grad: Tensor) -> Tensor:
    """``g`` for ``grad [B, S, D]`` of h and ``last_grad [B, D]`` of the last h once more."""
    passed = torch.cat([torch.ones_like(f[:, :1]), f.flip(1)[:, :-1]], dim=1)
    g = torch.empty_like(passed)
    _Scan("plus_times")(passed, grad.flip(1), last_grad, g)
    return g.flip(1)


_LINEAR_SCAN = op(LinearScan, eager=_forward, backward=_backward)
