"""A long convolution with a filter that is a parameter, alone or with a squashed kernel and a GLU.

Sizes: B batch, S sequence, D width, L taps, C filters per channel.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.branches import linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.flops import convolution_flops
from seqmix.layers import wide
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.filters import explicit_filter, with_skip
from seqmix_gated_conv.history import convolve, history_spec

__all__ = ["LongConvolution", "LongConvolutionConfig"]


class LongConvolutionConfig(Strict):
    """Options of :class:`LongConvolution`; all but ``taps`` and ``form`` are of "safari"."""

    taps: PositiveInt
    """Length of the filter; what lies further back adds nothing."""
    form: Literal["zoology", "safari"] = "zoology"
    filters: PositiveInt = 1
    """C: filters, and so features, per channel."""
    squash: float = Field(default=0.1, ge=0)
    """Taps are moved towards 0 by this much, and no further."""
    filter_std: float | None = Field(default=None, gt=0)
    """Of a fresh filter, by default ``1 / sqrt(L)``, and 0.002 beside the squashing."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.form == "zoology" and self.model_fields_set & {"filters", "squash"}:
            raise ValueError("'filters' and 'squash' need form = 'safari'")
        return self


class LongConvolution(SequenceMixer):
    """A convolution per channel over the last L tokens.

    "zoology" is ``y = conv(u, k) + u``. "safari" (Fu et al. 2023, "Simple hardware-efficient long
    convolutions", section 3.2) has C filters per channel: ``h_c = gelu(conv(u, squash(k_c)) + d_c
    * u)`` with ``squash(k) = sign(k) * max(|k| - squash, 0)``, then ``y = (a) * sigmoid(b)`` with
    ``[a, b] = W [h_1 .. h_C]``. Both are causal: a filter of 2 L taps in a transform of as many,
    as the latter's published code has it, would let tokens see later ones.
    """

    Config = LongConvolutionConfig
    exact_causality = False

    def __init__(self, config: LongConvolutionConfig, width: int) -> None:
        """Filters ``[C * D, L]``; filter c of channel d is row ``c * D + d``."""
        super().__init__()
        self.config = config
        self.width = width
        self.skip: nn.Parameter | None = None
        self.output: nn.Linear | None = None
        std = config.filter_std
        if config.form == "safari":
            std = std or 0.002
            self.skip = nn.Parameter(torch.randn(config.filters * width))
            self.output = linear(config.filters * width, 2 * width, bias=True)
        self.filter = explicit_filter(config.filters * width, config.taps, std)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``."""
        y, history = convolve(x, self._taps(), state["history"], ctx, grows=False)
        if self.output is not None:
            y = mask_padding(F.glu(self.output(F.gelu(y)), dim=-1), ctx)
        return y, {"history": history}

    def state_spec(self) -> dict[str, StateSpec]:
        """The last L - 1 inputs ``[B, D, L - 1]``."""
        return {"history": history_spec(self.width, self.config.taps)}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both forms, filters shorter and longer than the sequences that are tried."""
        return [
            {"taps": 40},
            {"taps": 1},
            {"taps": 20, "form": "safari", "filters": 2, "squash": 0.05},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Real operations of the transforms, and the output projection."""
        return self._flops(batch_size, seq_len, 0)

    def step_flops(self, batch_size: int, past: int) -> int:
        """One product per tap that reaches a token."""
        return self._flops(batch_size, 1, past)

    def _flops(self, batch_size: int, seq_len: int, past: int) -> int:
        rows, taps = self.filter.shape
        total = convolution_flops(batch_size, rows, seq_len, taps, past)
        if self.output is not None:
            total += 2 * batch_size * seq_len * self.output.weight.numel()
        return total

    def _taps(self) -> Tensor:
        """The filter ``[C * D, L]`` as it is applied, the skip in its first tap."""
        filter = wide(self.filter)
        if self.skip is None:
            return with_skip(filter, filter.new_ones(1).expand(filter.shape[0]))
        return with_skip(F.softshrink(filter, self.config.squash), self.skip)
