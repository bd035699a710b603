"""Implicit filters: taps that a small network makes from their distance, for any length.

Sizes: B batch, P past slots, L taps, D filters, E features of a distance, N hidden width.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from seqmix.config import Strict
from seqmix.layers import wide
from seqmix.state import StateSpec

__all__ = ["ImplicitFilter", "ImplicitFilterConfig", "explicit_filter", "with_skip"]


class ImplicitFilterConfig(Strict):
    """Options of :class:`ImplicitFilter`; the defaults are those of Hyena.

    A tap's distance n is told to the network relative to ``reference_length``, never to the length
    of a call, so that a filter is the same however a sequence is cut. Beyond that length the same
    formulas go on: time grows past 1, the waves repeat, an exponential window goes on falling.
    """

    reference_length: PositiveInt
    bands: PositiveInt = 1
    """Waves among the features, a cosine and a sine each: E is ``1 + 2 * bands``."""
    hidden: PositiveInt = 64
    layers: NonNegativeInt = 2
    """Layers from N to N, between the one into N and the one out of it."""
    activation: Literal["sine", "relu"] = "sine"
    frequency: float = Field(default=1.0, gt=0)
    """Where the sines' frequencies start; each hidden channel of each layer learns its own."""
    output_bias: bool = False
    window: Literal["exponential", "none"] = "exponential"
    window_shift: float = 0.0
    """Added to the window, so that far taps keep at least this share."""
    slowest_decay: float = Field(default=1.5, gt=0)
    fastest_decay: float = Field(default=0.3, gt=0)
    """Shares of the reference length in which the first and the last filter's window falls to
    ``decay_target``; the others' rates lie evenly in between."""
    decay_target: float = Field(default=1e-2, gt=0, lt=1)
    normalize: bool = False
    """Divide the taps of one distance by the sum of their magnitudes over all filters."""


class ImplicitFilter(nn.Module):
    """``k_d[n] = window_d(n) * network(features(n))_d`` (Poli et al. 2023, section 3.3).

    With R the reference length and ``t = n / (R - 1)``, the features are t and, for each of the
    frequencies f from 1e-4 to ``bands - 1``, ``cos(2 pi f n / R)`` and ``-sin(2 pi f n / R)``. The
    network is linear layers with ``sin(w * h)`` or relu between them, the window ``exp(-t *
    |rate_d|) + shift``. All of it is float32 at least.
    """

    def __init__(self, config: ImplicitFilterConfig, filters: int) -> None:
        """Linear layers as torch draws them; ``filters`` is D."""
        super().__init__()
        self.config = config
        sizes = [1 + 2 * config.bands, *[config.hidden] * (config.layers + 1)]
        self.inner = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.outer = nn.Linear(config.hidden, filters, bias=config.output_bias)
        self.frequency = None
        if config.activation == "sine":
            start = torch.full((config.layers + 1, config.hidden), config.frequency)
            self.frequency = nn.Parameter(start)

    def forward(self, length: int, *, start: int = 0, skip: Tensor | None = None) -> Tensor:
        """The ``length`` taps from distance ``start`` on, ``[D, L]``, nearest first.

        ``skip [D]`` is added to the tap at distance 0, which is ``skip * u`` added to the output.
        """
        weight = wide(self.outer.weight)
        n = torch.arange(start + length, device=weight.device)[start:].to(weight.dtype)
        time = n / max(1, self.config.reference_length - 1)
        h = self._features(n, time)
        for index, layer in enumerate(self._layers()):
            h = F.linear(h, wide(layer.weight), wide(layer.bias))
            h = F.relu(h) if self.frequency is None else torch.sin(wide(self.frequency[index]) * h)
        taps = torch.matmul(weight, h.transpose(0, 1))
        if self.outer.bias is not None:
            taps = taps + wide(self.outer.bias).unsqueeze(1)
        if self.config.window == "exponential":
            taps = taps * self._window(time, taps.shape[0])
        if self.config.normalize:
            # The quotient of 0 and 0 would be NaN where a window has fallen to nothing.
            taps = taps / taps.abs().sum(0, keepdim=True).clamp(min=_TINY)
        return taps if skip is None else taps + wide(skip).unsqueeze(1) * (n == 0).to(taps.dtype)

    def after(
        self, known: Tensor, length: int, *, skip: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All taps ``[D, P + L]`` where those of the state ``known [B, D, P]`` are made already.

        Also the next state, whose rows are views of these taps. A tap depends on its distance
        alone, so it is made once, when the first token that far behind comes into reach. In
        training all are made anew, so that they are those of the present weights, and all of them
        pass gradients on, even where states are detached or outlive an optimizer's step.
        """
        rows, _, past = known.shape
        if self.training:
            taps = self(past + length, skip=skip)
        else:
            new = self(length, start=past, skip=skip)
            taps = torch.cat([known[0].to(new.dtype), new], dim=1)
        return taps, taps.to(known.dtype).unsqueeze(0).expand(rows, -1, -1)

    def spec(self) -> StateSpec:
        """The taps that are made already, ``[B, D, P]`` in float32, the same in every row."""
        return StateSpec(("B", self.outer.weight.shape[0], "P"), "f32")

    def flops(self, length: int) -> int:
        """The matrix products of ``length`` taps."""
        return 2 * length * sum(layer.weight.numel() for layer in (*self._layers(), self.outer))

    def _layers(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.inner))

    def _features(self, n: Tensor, time: Tensor) -> Tensor:
        """``[L, E]``: time, cosines, sines."""
        bands = self.config.bands
        # One band alone has the lowest frequency, as linspace has it.
        waves = torch.linspace(1e-4, bands - 1, bands, dtype=n.dtype, device=n.device)
        angle = (2 * math.pi / self.config.reference_length) * n.unsqueeze(1) * waves
        return torch.cat([time.unsqueeze(1), torch.cos(angle), -torch.sin(angle)], dim=1)

    def _window(self, time: Tensor, filters: int) -> Tensor:
        """``[D, L]``, 1 at distance 0 but for the shift."""
        target = math.log(self.config.decay_target)
        first, last = target / self.config.slowest_decay, target / self.config.fastest_decay
        rates = torch.linspace(first, last, filters, dtype=time.dtype, device=time.device)
        return torch.exp(time * rates.unsqueeze(1)) + self.config.window_shift


_TINY = 1e-30


def explicit_filter(filters: int, taps: int, std: float | None = None) -> nn.Parameter:
    """A parameter ``[D, L]``, normal; by default so that outputs are as large as inputs."""
    return nn.Parameter(torch.randn(filters, taps) * (taps**-0.5 if std is None else std))


def with_skip(filter: Tensor, skip: Tensor) -> Tensor:
    """``filter [D, L]`` with ``skip [D]`` added to the tap at distance 0, in float32 at least.

    Convolving with it is ``conv(u, filter) + skip * u`` without another pass over the sequence.
    """
    filter = wide(filter)
    first = filter[:, :1] + skip.to(filter.dtype).unsqueeze(1)
    return torch.cat([first, filter[:, 1:]], dim=1)
