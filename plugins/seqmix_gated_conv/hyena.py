"""Hyena: convolutions with implicit filters, each between two gates.

Sizes: B batch, S sequence, D width, N order, H heads, V channels of a head, W short taps, P past.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqmix.branches import linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.flops import convolution_flops
from seqmix.layers import CausalConv, equal_parts
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.filters import ImplicitFilter, ImplicitFilterConfig
from seqmix_gated_conv.history import convolve, history_spec

__all__ = ["Hyena", "HyenaConfig"]


class HyenaConfig(Strict):
    """Options of :class:`Hyena`; ``filter`` needs its ``reference_length``."""

    filter: ImplicitFilterConfig
    order: Annotated[int, Field(ge=2)] = 2
    """N: gates around N - 1 convolutions."""
    heads: PositiveInt = 1
    """Each of the V filters of a convolution serves one channel of every head."""
    short_taps: PositiveInt = 3
    """W: taps of the convolution behind the projection."""
    gates: Literal["safari", "zoology"] = "safari"
    """Which streams come first, see :class:`Hyena`; with fresh weights it makes no difference."""


class Hyena(SequenceMixer):
    """Gates and long convolutions in turn (Poli et al. 2023, section 3).

    ``z = conv_short(W x + b)`` is split into N + 1 streams of D: gates ``g_0 .. g_{N-1}`` and v.
    A long convolution with its skip is ``C_i(u) = conv(u, k_i) + d_i * u``.

    - gates "safari": ``y = g_0 * C_{N-1}(g_1 * .. C_1(g_{N-1} * v))``: the last gate comes first.
    - gates "zoology": ``y = g_{N-1} * C_{N-1}(g_{N-2} * .. C_1(g_0 * v))``, which that repository
      has for N = 2 alone.

    Then ``W_o y + b_o``. So there are N gates but N - 1 convolutions; the paper's recurrence counts
    one more convolution, in front of the first gate. Row ``v * (N - 1) + i - 1`` of the filters'
    output is channel v of ``k_i``; channel v of every head uses it.

    The state is what each long convolution has read, ``[B, D, P]``, and the taps so far, ``[B,
    (N - 1) V, P]``, so a decoding step costs ``(N - 1) * P * D`` products, and one new tap.
    """

    Config = HyenaConfig
    exact_causality = False

    def __init__(self, config: HyenaConfig, width: int) -> None:
        """ConfigError when ``heads`` does not divide the width."""
        super().__init__()
        self.config = config
        self.width = width
        self.head_width = equal_parts(width, config.heads, "mixer 'hyena': width", "heads")
        self.convolutions = config.order - 1
        self.input = linear(width, (config.order + 1) * width, bias=True)
        self.short = CausalConv((config.order + 1) * width, config.short_taps, activation="")
        self.filter = ImplicitFilter(config.filter, self.head_width * self.convolutions)
        self.skip = nn.Parameter(torch.randn(self.head_width * self.convolutions))
        self.output = linear(width, width, bias=True)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``."""
        streams, tail = self.short(self.input(x), state["conv"], ctx)
        *gates, value = streams.chunk(self.config.order + 1, dim=2)
        if self.config.gates == "safari":
            gates.reverse()
        taps, known = self.filter.after(state["filter"], x.shape[1], skip=self.skip)
        after, filters = {"conv": tail, "filter": known}, self._filters(taps)
        value = gates[0] * value
        for key, gate, filter in zip(self._keys(), gates[1:], filters, strict=True):
            value, after[key] = convolve(value, filter, state[key], ctx)
            value = gate * value
        return mask_padding(self.output(value), ctx), after

    def state_spec(self) -> dict[str, StateSpec]:
        """``conv [B, (N + 1) D, W - 1]``, the filters, and a history for each of them."""
        channels, taps = self.short.weight.shape
        specs = {"conv": StateSpec(("B", channels, taps - 1), role="conv")}
        specs["filter"] = self.filter.spec()
        return specs | dict.fromkeys(self._keys(), history_spec(self.width))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Orders 2 and 3, heads that are no power of two, waves, a window with a shift."""
        small = {"reference_length": 12, "hidden": 10}
        odd = {"bands": 2, "frequency": 3.0, "window_shift": 0.1, "normalize": True}
        return [
            {"filter": small},
            {"filter": small | odd, "order": 3, "heads": 3, "short_taps": 5, "gates": "zoology"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Projections, short taps, gates, the filters' network, and the transforms.

        The terms are those of the paper's appendix A.2 with N + 1 projected streams, which the
        published code has, and not N. Transforms count real operations, the rest multiply-adds.
        """
        return self._flops(batch_size, seq_len, 0)

    def step_flops(self, batch_size: int, past: int) -> int:
        """Each convolution multiplies once per token behind, and each filter gets one more tap."""
        return self._flops(batch_size, 1, past)

    def _flops(self, batch_size: int, seq_len: int, past: int) -> int:
        D, per_token = self.width, self.input.weight.numel() + self.output.weight.numel()
        per_token += self.short.weight.numel() + self.config.order * D
        total = past + seq_len
        long = self.convolutions * convolution_flops(batch_size, D, seq_len, total, past)
        return 2 * batch_size * seq_len * per_token + self.filter.flops(seq_len) + long

    def _keys(self) -> list[str]:
        return ["history", *(f"history_{i}" for i in range(2, self.config.order))]

    def _filters(self, taps: Tensor) -> list[Tensor]:
        """The taps ``[D, L]`` of each long convolution."""
        parts = taps.reshape(self.head_width, self.convolutions, -1).unbind(1)
        heads = self.config.heads
        return [part.repeat(heads, 1) if heads > 1 else part for part in parts]
