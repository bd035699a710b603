"""Causal convolution with a filter that may be as long as the sequence, or longer.

B batch, D channels, C filters per channel, S sequence, P past, T = P + S, L filter taps, n samples
of a transform, M frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.op import op
from seqmix_ir.ops import LongConv

__all__ = ["long_conv"]

_SMALL = 1024
"""Up to this size a matrix of all shifts is faster than transforms."""
_FEW_TAPS = 8
"""Up to this many taps one multiplication per tap is."""


def long_conv(x: Tensor, filter: Tensor, history: Tensor | None = None) -> Tensor:
    """``y[t] = sum_l filter[l] * seq[P + t - l]`` with ``seq = [history, x]``, oldest first.

    ``x [B, D, S]``, ``filter [C * D, L]`` of any length from 1, ``history [B, D, P]`` -> ``y [B,
    C * D, S]``; row ``c * D + d`` is filter c of channel d, which is transformed once for all of
    them. Taps that reach before the sequence add nothing. Computed in float32 (float64 for
    float64) whatever goes in; ``filter`` may be float32 beside a narrower ``x``. Short ones are
    matrix products, which see nothing of later inputs; the others are by FFT, causal to rounding.
    """
    y: Tensor = _LONG_CONV(x, filter, history)
    return y


def _forward(x: Tensor, filter: Tensor, history: Tensor | None) -> Tensor:
    if x.shape[2] == 1:
        return _one_output(x, filter, history).to(x.dtype)
    seq, taps = _widened(x, filter, history)
    S, T = x.shape[2], seq.shape[2]
    if taps.shape[1] <= _FEW_TAPS:
        return _by_taps(_once_per_filter(seq, taps), taps, S).to(x.dtype)
    if S * T <= _SMALL:
        return _by_matrix(_once_per_filter(seq, taps), taps, S).to(x.dtype)
    n = _fast_length(max(T, S + taps.shape[1] - 1))
    spectrum = _times(torch.fft.rfft(seq, n), torch.fft.rfft(taps, n))
    y: Tensor = torch.fft.irfft(spectrum, n)[..., T - S : T]
    return y.contiguous().to(x.dtype)


def _widened(x: Tensor, filter: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
    """The joined sequence ``[B, D, T]`` and the taps that can reach something, ``[C D, <= T]``."""
    wide = torch.promote_types(x.dtype, torch.float32)
    seq = x
    if history is not None and history.shape[2] > 0:
        seq = torch.cat([history, x], dim=-1)
    return seq.to(wide), filter[:, : seq.shape[2]].to(wide)


def _one_output(x: Tensor, filter: Tensor, history: Tensor | None) -> Tensor:
    """One scalar product per channel, with the history where it is: decoding must not copy it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    y = _once_per_filter(x.to(wide), filter) * filter[:, :1].to(wide)
    reach = 0 if history is None else min(history.shape[2], filter.shape[1] - 1)
    if history is None or reach == 0:
        return y
    near = history[..., history.shape[2] - reach :].to(wide).transpose(0, 1)
    taps = filter[:, 1 : reach + 1].to(wide).flip(1).reshape(-1, x.shape[1], reach)
    # [D, B, P] times [D, P, C].
    sums = torch.matmul(near, taps.permute(1, 2, 0))
    return y + sums.permute(1, 2, 0).flatten(1).unsqueeze(2)


def _once_per_filter(x: Tensor, filter: Tensor) -> Tensor:
    """``x [B, D, T]`` behind each other once for each of the C filters of a channel."""
    copies = filter.shape[0] // max(1, x.shape[1])
    return x.repeat(1, copies, 1) if copies > 1 else x


def _times(spectrum: Tensor, taps: Tensor) -> Tensor:
    """Spectra ``[B, D, M]``, which are overwritten if C is 1, times ``[.., C D, M]``."""
    D, M = spectrum.shape[1:]
    if taps.shape[-2] == D:
        return spectrum.mul_(taps)
    by_filter = taps.reshape(*taps.shape[:-2], -1, D, M)
    return (spectrum.unsqueeze(1) * by_filter).flatten(1, 2)


def _by_taps(seq: Tensor, taps: Tensor, S: int) -> Tensor:
    T = seq.shape[2]
    y = seq[..., T - S :] * taps[:, :1]
    for tap in range(1, taps.shape[1]):
        first = max(0, tap - (T - S))
        y[..., first:].addcmul_(seq[..., T - S + first - tap : T - tap], taps[:, tap : tap + 1])
    return y


def _by_matrix(seq: Tensor, taps: Tensor, S: int) -> Tensor:
    """``[D, S, T]``, row t a copy of the reversed filter that ends at sample P + t, times seq."""
    T, L = seq.shape[2], taps.shape[1]
    reach = min(T, S + L - 1)
    seq = seq[..., T - reach :]
    # Row t reads the reversed taps from a place that moves one step back with t.
    line = torch.nn.functional.pad(taps.flip(1), (max(0, reach - L), S - 1))
    start = line.shape[1] - (S - 1) - reach
    shifts = line.unfold(1, reach, 1)[:, start : start + S].flip(1)
    return torch.matmul(shifts, seq.permute(1, 2, 0)).permute(2, 0, 1).contiguous()


def _fast_length(size: int) -> int:
    """The smallest even length from ``size`` on with no prime factor above 5, roughly."""
    step = 1 << max(0, (size - 1).bit_length() - 4)
    candidates = (m * step for m in (8, 9, 10, 12, 15, 16) if m * step >= size)
    return max(16, next(candidates))


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """Correlations of the gradient with the filter and with the sequence, by FFT.

    What wraps around in n >= S + L - 1 samples falls outside of what is kept.
    """
    x, filter, history = operands
    if x is None or filter is None:
        raise TypeError("long_conv: x and filter are needed")
    seq, taps = _widened(x, filter, history)
    S, T, L, D = x.shape[2], seq.shape[2], taps.shape[1], x.shape[1]
    n = _fast_length(max(T, S + L - 1))
    placed = torch.nn.functional.pad(grads[0].to(seq.dtype), (T - S, n - T))
    spectrum = torch.fft.rfft(placed)
    found: list[Tensor | None] = [None, None, None]
    # Large tensors cost as much to get as to fill, so spectra are conjugated and multiplied where
    # they are; the gradient's own is overwritten last.
    if needs[1]:
        back = _times(torch.fft.rfft(seq, n).conj_physical_(), spectrum)
        taps_grad = torch.fft.irfft(back[0] if back.shape[0] == 1 else back.sum(0), n)
        found[1] = _with_zeros(taps_grad[:, :L].to(filter.dtype), filter.shape[1])
    if needs[0] or needs[2]:
        back = spectrum.mul_(torch.fft.rfft(taps, n).conj_physical_())
        back = back if taps.shape[0] == D else back.reshape(len(back), -1, D, back.shape[2]).sum(1)
        seq_grad = torch.fft.irfft(back, n)[..., :T].to(x.dtype)
        found[0], found[2] = seq_grad[..., T - S :], seq_grad[..., : T - S]
    return found


def _with_zeros(taps: Tensor, length: int) -> Tensor:
    """``[D, L]`` with as many zeros behind as are missing."""
    missing = length - taps.shape[1]
    return torch.nn.functional.pad(taps, (0, missing)) if missing else taps


_LONG_CONV = op(LongConv, eager=_forward, backward=_backward)
