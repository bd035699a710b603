"""A bank of diagonal state spaces: parameters, initialization, discretization, kernel, state.

Sizes: B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes (half
the state size: the other half are their conjugates), L length of a kernel.
"""

from __future__ import annotations

import math
from typing import Literal, Self, TypeAlias

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.config import Strict
from seqmix.context import Context
from seqmix.layers import equal_parts, raised
from seqmix.state import StateSpec
from seqmix_gated_conv.state_space_chunks import state_space

__all__ = ["DiagonalStateSpace", "StateSpaceConfig"]

Pair: TypeAlias = "tuple[Tensor, Tensor]"


class StateSpaceConfig(Strict):
    """Options of the state spaces of a mixer; the defaults are those of S4D."""

    state_size: PositiveInt = 64
    """Real numbers that each input is remembered by; even, as modes come with their conjugates."""
    discretization: Literal["zoh", "bilinear"] = "zoh"
    initialization: Literal["lin", "inv"] = "lin"
    """S4D-Lin or S4D-Inv: how fast fresh modes turn."""
    dt_min: float = Field(default=0.001, ge=1e-9, le=1e9)
    dt_max: float = Field(default=0.1, ge=1e-9, le=1e9)
    """A fresh step is drawn between the two, its logarithm evenly."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min = {self.dt_min} must not be above dt_max = {self.dt_max}")
        return self


class DiagonalStateSpace(nn.Module):
    """``h' = A h + B u``, ``y = 2 Re(C h)`` with a diagonal A, in steps of dt (Gu et al. 2022).

    ``A = -exp(log_decay) + i frequency``; per state space ``dt = exp(log_dt)``. A step is ``h_t =
    a h_{t-1} + b u_t``, where ``zoh`` has ``a = exp(dt A)``, ``b = (a - 1) / A B`` and ``bilinear``
    ``a = (1 + dt A / 2) / (1 - dt A / 2)``, ``b = dt / (1 - dt A / 2) B``
    (arXiv 2206.11893, section 3).

    What is kept as state is h with b divided out, ``sum_k a^k u_{t-k}``, in float32. a and b are
    computed in float64: the powers of a slow mode would else lose their phase within 4096 steps.
    """

    def __init__(self, spaces: int, config: StateSpaceConfig, *, inputs: int = 1) -> None:
        """``spaces`` state spaces with ``inputs`` each; ConfigError for an odd state size."""
        super().__init__()
        self.modes = equal_parts(config.state_size, 2, "a state space: state_size", "its pairs")
        self.spaces, self.inputs = spaces, inputs
        self.bilinear = config.discretization == "bilinear"
        low, high = math.log(config.dt_min), math.log(config.dt_max)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(spaces))
        turns = _FREQUENCIES[config.initialization](self.modes)
        self.log_decay = nn.Parameter(torch.full((spaces, self.modes), math.log(0.5)))
        self.frequency = nn.Parameter(turns.expand(spaces, -1).clone())
        self.input = nn.Parameter(torch.tensor([1.0, 0.0]).expand(spaces, self.modes, 2).clone())
        self.output = nn.Parameter(math.sqrt(0.5) * torch.randn(spaces, self.modes, 2))

    def forward(self, x: Tensor, state: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Map ``x [B, S, V, G]`` and ``state [B, G, V, N, 2]`` to the same shapes; 0 at padding."""
        decay, weight = self.discrete()
        return self.run(x, decay, self.readout(weight), state, ctx)

    def run(
        self, x: Tensor, decay: Tensor, readout: Tensor, state: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """The recurrence of given a and readout, ``[G, N, 2]``; the state keeps its dtype."""
        valid = ctx.valid if ctx.may_be_padded else None
        y, after = state_space(x, decay, readout, raised(state, x), valid)
        return y, after.to(state.dtype)

    def discrete(self) -> tuple[Tensor, Pair]:
        """Of a real pairs ``[G, N, 2]``, of b both parts ``[G, N]``; in float64."""
        dt = self.log_dt.double().exp().unsqueeze(-1)
        re, im = -dt * self.log_decay.double().exp(), dt * self.frequency.double()
        decay, scale = _bilinear(dt, re, im) if self.bilinear else _zero_order_hold(dt, re, im)
        return torch.stack(decay, -1), _product(scale, _parts(self.input))

    def readout(self, weight: Pair, power: int = 1) -> Tensor:
        """``2 C b^power [G, N, 2]``: what y takes of the state, where ``weight`` is b."""
        out = _parts(2 * self.output)
        for _ in range(power):
            out = _product(out, weight)
        return torch.stack(out, -1)

    def kernel(self, length: int) -> Tensor:
        """The convolution ``[G, L]`` that this is, ``k[t] = 2 Re(sum_n C_n b_n a_n^t)``."""
        decay, weight = self.discrete()
        impulse = torch.zeros(1, length, 1, self.spaces, device=decay.device, dtype=decay.dtype)
        impulse[:, 0] = 1
        empty = decay.new_zeros(1, self.spaces, 1, self.modes, 2)
        y, _ = state_space(impulse, decay, self.readout(weight), empty)
        return y[0, :, 0].T

    def spec(self, copies: int = 1) -> StateSpec:
        """The state, ``[B, copies * G, V, N, 2]`` in float32."""
        axes = ("B", copies * self.spaces, self.inputs, self.modes, 2)
        return StateSpec(axes, "f32", role="recurrent")

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Of the recurrence: a complex product and half of one per token, input and mode."""
        return 12 * batch_size * seq_len * self.spaces * self.inputs * self.modes


def _zero_order_hold(dt: Tensor, re: Tensor, im: Tensor) -> tuple[Pair, Pair]:
    """``a = exp(z)`` and ``(a - 1) / A = dt (a - 1) / z`` for ``z = dt A``."""
    size = re.exp()
    decay = size * im.cos(), size * im.sin()
    inverse = dt / (re.square() + im.square())
    return decay, _product((decay[0] - 1, decay[1]), (re * inverse, -im * inverse))


def _bilinear(dt: Tensor, re: Tensor, im: Tensor) -> tuple[Pair, Pair]:
    """``a = (1 + z) / (1 - z)`` and ``dt / (1 - z)`` for ``z = dt A / 2``."""
    re, im = re / 2, im / 2
    below = (1 - re).square() + im.square()
    decay = (1 - re.square() - im.square()) / below, 2 * im / below
    scale = dt / below
    return decay, (scale * (1 - re), scale * im)


def _lin(modes: int) -> Tensor:
    """S4D-Lin: ``pi n`` (Gu et al. 2022)."""
    return math.pi * torch.arange(modes)


def _inv(modes: int) -> Tensor:
    """S4D-Inv: ``M / pi (M / (2 n + 1) - 1)`` with M = 2 N (Gu et al. 2022)."""
    size = 2 * modes
    return size / math.pi * (size / (2 * torch.arange(modes) + 1) - 1)


_FREQUENCIES = {"lin": _lin, "inv": _inv}


def _parts(x: Tensor) -> Pair:
    """Real and imaginary parts of real pairs, in float64."""
    re, im = x.double().unbind(-1)
    return re, im


def _product(x: Pair, y: Pair) -> Pair:
    """Of complex numbers."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]
