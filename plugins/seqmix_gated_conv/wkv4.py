"""The recurrence of RWKV-4: an average of all values before, weighted by exponentials.

Sizes: B batch, S sequence, D channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqmix.ops import linear_scan

__all__ = ["NOTHING_YET", "wkv4"]

NOTHING_YET = -1e38
"""The stabiliser before the first token: finite, so that it can be subtracted from itself."""

Cell = tuple[Tensor, Tensor, Tensor]


def wkv4(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, cell: Cell, valid: Tensor | None
) -> tuple[Tensor, Cell]:
    """``y_t = (sum_{s<t} e^{(t-1-s) w + k_s} v_s + e^{u + k_t} v_t) / (the same without v)``.

    ``k``, ``v [B, S, D]`` in the dtype of the sums, ``decay`` w (at most 0) and ``bonus`` u
    ``[D]``, ``valid [B, S]`` (None: all are) -> ``y [B, S, D]`` (finite, but meaningless at
    padding) and the cell after.

    The cell is ``(aa, bb, pp)``, each ``[B, D]``: numerator and denominator times ``e^{-pp}``,
    where pp, the largest exponent so far, keeps all exponentials at 1 or below, as in the RNN cell
    of Peng et al. (2023). All S steps are three linear scans: pp over (max, +), the sums over
    (plus, times).
    """
    aa, bb, pp = cell
    w, seen = decay.expand_as(k), k
    if valid is not None:
        padding = ~valid.unsqueeze(-1)
        w, seen = w.masked_fill(padding, 0.0), k.masked_fill(padding, -math.inf)
    peaks, pp_after = linear_scan(w, seen, pp, semiring="max_plus")
    # Whatever the peaks are, they cancel in y: no gradient needs to pass through them.
    peaks = peaks.detach()
    before = _shifted(pp, peaks)
    kept, added = torch.exp(w + before - peaks), torch.exp(seen - peaks)
    numerators, aa_after = linear_scan(kept, added * v, aa)
    denominators, bb_after = linear_scan(kept, added, bb)
    y = _read(_shifted(aa, numerators), _shifted(bb, denominators), bonus + k - before, v)
    if pp_after.requires_grad:
        # They do not cancel in the cell: a factor of 1 has the gradient that was cut off.
        factor = torch.exp(peaks[:, -1] - pp_after)
        aa_after, bb_after = aa_after * factor, bb_after * factor
    return y, (aa_after, bb_after, pp_after)


def _shifted(first: Tensor, rest: Tensor) -> Tensor:
    """What stood before each step."""
    return torch.cat([first.unsqueeze(1), rest[:, :-1]], dim=1)


def _read(aa: Tensor, bb: Tensor, ahead: Tensor, v: Tensor) -> Tensor:
    """``(aa + e^ahead v) / (bb + e^ahead)``, both sides scaled down where ``ahead`` is above 0."""
    old, new = torch.exp(-ahead.clamp_min(0)), torch.exp(ahead.clamp_max(0))
    return (old * aa + new * v) / (old * bb + new)
