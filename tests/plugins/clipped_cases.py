"""Rotary attention with clipped distances written out pair by pair, and what its tests share.

N tokens, K head size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from seqmix.context import Context
from seqmix.model import Model
from seqmix.state import initial_state
from seqmix_rope.clipped_heads import ClippedHeads, ClippedHeadsConfig


def written_out(
    mixer: ClippedHeads,
    config: ClippedHeadsConfig,
    x: np.ndarray,
    seen: Callable[[int, int], bool],
    apparent: Callable[[int], float],
    growth: Callable[[int], float] = lambda t: 1.0,
) -> np.ndarray:
    """``[N, D]``: one query and one key at a time, in float64, from the mixer's weights."""
    H, G, K = mixer.heads, mixer.kv_heads, mixer.head_dim
    projected = []
    for linear in (mixer.query, mixer.key, mixer.value):
        y = x @ linear.weight.detach().numpy().T
        projected.append(y if linear.bias is None else y + linear.bias.detach().numpy())
    q, k, v = (y.reshape(len(x), -1, K) for y in projected)
    rows = np.zeros((len(x), H, K))
    for t in range(len(x)):
        keys = [s for s in range(t + 1) if seen(t, s)]
        for h in range(H):
            g = h // (H // G)
            logits = np.array([_logit(config, q[t, h], k[s, g], apparent(t - s)) for s in keys])
            logits *= growth(t) * (config.scale or K**-0.5)
            weights = np.exp(logits - logits.max())
            rows[t, h] = weights / weights.sum() @ v[keys, g]
    y = rows.reshape(len(x), -1) @ mixer.output.weight.detach().numpy().T
    return y if mixer.output.bias is None else y + mixer.output.bias.detach().numpy()


def _logit(config: ClippedHeadsConfig, q: np.ndarray, k: np.ndarray, distance: float) -> float:
    R = config.rotary_dim or config.head_dim
    turn = np.exp(1j * distance * config.theta ** (-np.arange(0, R, 2) / R))
    halves = slice(0, R, 2), slice(1, R, 2)
    if config.layout == "half":
        halves = slice(0, R // 2), slice(R // 2, R)
    first, second = (y[halves[0]] + 1j * y[halves[1]] for y in (q, k))
    return float((first * turn * second.conj()).real.sum() + q[R:] @ k[R:])


def stirred(mixer: ClippedHeads) -> ClippedHeads:
    """With weights that matter, in float64."""
    generator = torch.Generator().manual_seed(5)
    for parameter in mixer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return mixer.double().requires_grad_(False)


def run(mixer: ClippedHeads, x: np.ndarray) -> np.ndarray:
    """The mixer on ``[N, D]`` at once."""
    positions = torch.arange(len(x)).unsqueeze(0)
    state = initial_state(mixer.state_spec(), 1, dtype=torch.float64)
    y, _ = mixer(torch.from_numpy(x).unsqueeze(0), state, Context(positions))
    return y[0].numpy()


def decoded(made: Model, ids: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    """Logits of ids ``[B, S]``, read in pieces of the given sizes."""
    states, out, start = None, [], 0
    for size in pieces:
        positions = torch.arange(start, start + size).expand(ids.shape[0], -1)
        logits, states = made(ids[:, start : start + size], positions, states)
        out.append(logits)
        start += size
    return torch.cat(out, 1)
