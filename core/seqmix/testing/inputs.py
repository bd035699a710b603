"""Inputs on purpose odd, and the distance between two results."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, initial_state

__all__ = ["call", "distance", "fresh_state", "random_input", "with_padding"]


def random_input(batch: int, length: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal ``[B, S, D]``, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000 * seed + 10 * length + batch)
    return torch.randn(batch, length, width, generator=generator, dtype=torch.float64).to(dtype)


def fresh_state(mixer: SequenceMixer, batch: int, dtype: torch.dtype) -> State:
    """The state before the first token."""
    return initial_state(mixer.state_spec(), batch, dtype=dtype)


def call(mixer: SequenceMixer, x: Tensor, positions: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a mixer by itself; its token ids are made from the positions."""
    ctx = Context(positions, input_ids=positions.clamp(min=0) % 7)
    out, after = mixer(x, state, ctx)
    return out, after


def with_padding(x: Tensor, places: list[bool]) -> tuple[Tensor, Tensor]:
    """Spread ``x [B, S, D]`` over the true places; returns the wider x and its positions.

    What stands at padding is large on purpose: it must not leak.
    """
    keep = torch.tensor(places)
    wide = torch.full((x.shape[0], len(places), x.shape[2]), 37.0, dtype=x.dtype)
    wide[:, keep] = x
    positions = torch.where(keep, keep.to(torch.int64).cumsum(0) - 1, -1)
    return wide, positions.expand(x.shape[0], -1)


def distance(a: Tensor | Mapping[str, Tensor], b: Tensor | Mapping[str, Tensor]) -> float:
    """The largest difference over the largest value (at least 1); inf where shapes differ."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return float("inf")
        if a.numel() == 0:
            return 0.0
        gap = (a.double() - b.double()).abs().max().item()
        return float(gap / max(1.0, b.double().abs().max().item()))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if set(a) != set(b):
            return float("inf")
        return max((distance(a[key], b[key]) for key in a), default=0.0)
    return float("inf")
