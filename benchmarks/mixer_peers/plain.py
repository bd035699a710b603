"""Long convolutions as they are usually written in torch: transforms of twice the length.

Sizes: B batch, S sequence, D width, C filters per channel, N order, E features, M modes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PlainHyena", "PlainLongConvolution", "PlainS4D", "transform_convolution"]


def transform_convolution(u: Tensor, taps: Tensor) -> Tensor:
    """Convolve ``u [..., S]`` with ``taps [..., S]`` causally."""
    S = u.shape[-1]
    spectrum = torch.fft.rfft(u, n=2 * S) * torch.fft.rfft(taps, n=2 * S)
    y: Tensor = torch.fft.irfft(spectrum, n=2 * S)[..., :S]
    return y


class PlainLongConvolution(nn.Module):
    """C squashed filters per channel, a skip, GELU, and a projection with a gate."""

    def __init__(self, width: int, length: int, filters: int, squash: float) -> None:
        """Filters of ``length`` taps."""
        super().__init__()
        self.squash = squash
        self.filter = nn.Parameter(0.002 * torch.randn(filters, width, length))
        self.skip = nn.Parameter(torch.randn(filters, width))
        self.output = nn.Linear(filters * width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x [B, S, D]``."""
        u = x.transpose(1, 2).unsqueeze(1)
        y = transform_convolution(u, F.softshrink(self.filter, self.squash))
        y = F.gelu(y + u * self.skip.unsqueeze(-1)).flatten(1, 2)
        return F.glu(self.output(y.transpose(1, 2)), dim=-1)


class PlainHyena(nn.Module):
    """Order N: a projection to N + 1 streams, short taps, N - 1 gated long convolutions."""

    features: Tensor
    window: Tensor

    def __init__(self, width: int, length: int, order: int, hidden: int = 64) -> None:
        """Filters of ``length`` taps made by a network of three hidden layers of sines."""
        super().__init__()
        self.order, self.width = order, width
        streams = (order + 1) * width
        self.input, self.output = nn.Linear(width, streams), nn.Linear(width, width)
        self.short = nn.Conv1d(streams, streams, 3, padding=2, groups=streams)
        self.network = nn.ModuleList([nn.Linear(3, hidden)])
        self.network.extend(nn.Linear(hidden, hidden) for _ in range(2))
        self.frequency = nn.Parameter(torch.ones(3, hidden))
        self.taps = nn.Linear(hidden, (order - 1) * width, bias=False)
        self.skip = nn.Parameter(torch.randn(order - 1, width))
        time = torch.linspace(0, 1, length)
        angle = 2 * math.pi * 1e-4 * torch.arange(length) / length
        self.register_buffer("features", torch.stack([time, angle.cos(), -angle.sin()], dim=1))
        rates = torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, (order - 1) * width)
        self.register_buffer("window", torch.exp(time.unsqueeze(1) * rates))

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x [B, S, D]``."""
        S = x.shape[1]
        streams = self.short(self.input(x).transpose(1, 2))[..., :S].split(self.width, dim=1)
        y, gates, taps = streams[-1], streams[:-1], self._filters(S)
        for index, gate in enumerate(reversed(gates[1:])):
            y = y * gate
            y = transform_convolution(y, taps[index]) + y * self.skip[index].unsqueeze(-1)
        mixed: Tensor = self.output((y * gates[0]).transpose(1, 2))
        return mixed

    def _filters(self, length: int) -> Tensor:
        """``[N - 1, D, S]``."""
        h = self.features[:length]
        for layer, frequency in zip(self.network, self.frequency, strict=True):
            h = torch.sin(frequency * layer(h))
        taps: Tensor = self.taps(h) * self.window[:length]
        return taps.T.reshape(self.order - 1, self.width, length)


class PlainS4D(nn.Module):
    """A diagonal state space as the sum of its modes' powers, convolved; GELU, gated projection."""

    def __init__(self, width: int, state_size: int) -> None:
        """``state_size / 2`` complex modes per channel, S4D-Lin."""
        super().__init__()
        modes = state_size // 2
        low, high = math.log(0.001), math.log(0.1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(width))
        self.log_decay = nn.Parameter(torch.full((width, modes), math.log(0.5)))
        self.turns = nn.Parameter(math.pi * torch.arange(modes).expand(width, -1).clone())
        self.readout = nn.Parameter(torch.randn(width, modes, 2))
        self.skip = nn.Parameter(torch.randn(width))
        self.output = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x [B, S, D]``."""
        u = x.transpose(1, 2)
        y = transform_convolution(u, self._taps(x.shape[1])) + u * self.skip.unsqueeze(-1)
        return F.glu(self.output(F.gelu(y).transpose(1, 2)), dim=-1)

    def _taps(self, length: int) -> Tensor:
        """``[D, S]``."""
        decay = torch.complex(-self.log_decay.exp(), self.turns)
        step = decay * self.log_dt.exp().unsqueeze(-1)
        weight = torch.view_as_complex(self.readout) * (step.exp() - 1) / decay
        powers = torch.exp(step.unsqueeze(-1) * torch.arange(length))
        return 2 * torch.einsum("dm,dms->ds", weight, powers).real
