"""Long causal convolution over what a mixer remembers: padding moves aside, history comes first.

Sizes: B batch, S sequence, D channels, P past slots, L taps, C filters per channel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.branches import mask_padding
from seqmix.context import Context, valid_last
from seqmix.ops import long_conv
from seqmix.state import StateSpec
from seqmix_gated_conv.turned import turned

__all__ = ["convolve", "history_spec"]


def history_spec(width: int, taps: int | None = None) -> StateSpec:
    """The history that :func:`convolve` wants: ``[B, D, P]``, or ``[B, D, taps - 1]``.

    Slots are time steps, right-aligned, zeros in front. Without ``taps`` it grows by one slot per
    token (padding included), as a filter that is made for any length needs it. A filter of L taps
    reaches no further than L - 1 tokens back, so its history has that fixed size.
    """
    return StateSpec(("B", width, "P" if taps is None else taps - 1), role="conv")


def convolve(
    x: Tensor, filter: Tensor, history: Tensor, ctx: Context, *, grows: bool = True
) -> tuple[Tensor, Tensor]:
    """``y[t] = sum_l filter[l] * u[t - l]`` over the real tokens u, and the history after it.

    ``x [B, S, D]``, ``filter [C * D, L]``, ``history [B, D, P]`` -> ``y [B, S, C * D]``, 0 at
    padding, and ``[B, D, P + S]`` when it ``grows``, else the last P slots. ``filter[c * D + d]``
    is the filter c of channel d; what is convolved is kept and transformed once. The filter may be
    float32 beside a narrower x: sums are float32 anyway. What lies L or more tokens back, or
    before the first token, adds nothing; to reach all of a growing history L must be P + S.

    """
    past = history.shape[2]
    # Transforms want time inside in memory, what stands around them the channels.
    tokens = turned(mask_padding(x, ctx))
    joined = torch.cat([history, tokens], dim=2)
    if not ctx.may_be_padded:
        y = long_conv(tokens, filter, history)
    else:
        # Zeros in front of everything are as good as nothing, so that is where padding goes.
        kept = torch.ones_like(history[:, 0], dtype=torch.bool)
        order, slot = valid_last(torch.cat([kept, ctx.valid], dim=1))
        joined = torch.gather(joined, 2, _each(order, x.shape[2]))
        place = (slot[:, past:] - past).clamp(min=0)
        y = long_conv(joined[:, :, past:], filter, joined[:, :, :past])
        y = torch.gather(y, 2, _each(place, filter.shape[0]))
    after = joined if grows else joined[:, :, x.shape[1] :].clone()
    return mask_padding(turned(y), ctx), after


def _each(index: Tensor, channels: int) -> Tensor:
    """``[B, T] -> [B, channels, T]``."""
    return index.unsqueeze(1).expand(-1, channels, -1)
