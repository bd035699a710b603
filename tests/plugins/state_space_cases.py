"""Helpers of the state space tests: mixers with fixed weights, and the recurrence in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqmix.config import build_config
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, initial_state
from seqmix_gated_conv.state_space import DiagonalStateSpace

__all__ = [
    "array",
    "build",
    "check_16_bits",
    "context",
    "convolved",
    "fresh",
    "kernel",
    "modes",
    "run",
]


def build(
    cls: type[SequenceMixer],
    options: dict[str, Any],
    width: int = 12,
    dtype: torch.dtype = torch.float32,
) -> SequenceMixer:
    torch.manual_seed(7)
    return cls(build_config(cls.Config, options, "here"), width).to(dtype).eval()


def context(start: int, stop: int, batch: int = 2) -> Context:
    return Context(torch.arange(start, stop).expand(batch, -1))


def fresh(mixer: SequenceMixer, batch: int = 2) -> State:
    dtype = next(mixer.parameters()).dtype
    state = initial_state(mixer.state_spec(), batch, dtype=dtype)
    return {k: t.double() if dtype == torch.float64 else t for k, t in state.items()}


def run(mixer: SequenceMixer, x: Tensor) -> Tensor:
    y, _ = mixer(x, fresh(mixer, len(x)), context(0, x.shape[1], len(x)))
    return y


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def modes(space: DiagonalStateSpace, bilinear: bool) -> tuple[np.ndarray, ...]:
    """a, b and C ``[G, N]`` by the textbook, complex, from the parameters."""
    dt = np.exp(array(space.log_dt))[:, None]
    A = -np.exp(array(space.log_decay)) + 1j * array(space.frequency)
    B, C = (array(t) @ np.array([1, 1j]) for t in (space.input, space.output))
    if bilinear:
        return (1 + dt * A / 2) / (1 - dt * A / 2), dt / (1 - dt * A / 2) * B, C
    return np.exp(dt * A), (np.exp(dt * A) - 1) / A * B, C


def kernel(space: DiagonalStateSpace, bilinear: bool, length: int, power: int = 1) -> np.ndarray:
    """``2 Re(sum_n C b^power a^t)``, ``[G, length]``."""
    a, b, C = modes(space, bilinear)
    powers = np.exp(np.log(a)[:, :, None] * np.arange(length))
    return 2 * ((C * b**power)[:, :, None] * powers).sum(1).real


def convolved(u: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Causal convolution of ``u [B, S, D]`` with ``taps [D, L]``, term by term."""
    y = np.zeros_like(u)
    for t in range(u.shape[1]):
        for back in range(min(t + 1, taps.shape[1])):
            y[:, t] += taps[:, back] * u[:, t - back]
    return y


def check_16_bits(
    cls: type[SequenceMixer],
    options: dict[str, Any],
    dtype: torch.dtype,
    tolerance: float,
    length: int = 21,
) -> None:
    """A narrow mixer trains, and gives what the same weights give in float32, near enough."""
    mixer, exact = build(cls, options, dtype=dtype), build(cls, options, dtype=dtype).float()
    x = torch.randn(2, length, 12).to(dtype)
    y, wanted = run(mixer, x), run(exact, x.float())
    assert y.dtype == dtype
    assert (y.float() - wanted).abs().max() < tolerance * wanted.abs().max()
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
