"""Inputs on purpose odd, and the distance between two results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
    """The state before the first token.

    In float64 every float of the state is float64, as the judge has it: what a mixer keeps in
    float32 whatever the model's dtype must be at least as wide as the model.
    """
    state = initial_state(mixer.state_spec(), batch, dtype=dtype)
    if dtype != torch.float64:
        return state
    return {key: t.double() if t.is_floating_point() else t for key, t in state.items()}


def call(mixer: SequenceMixer, x: Tensor, positions: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a mixer by itself; its token ids are made from the positions."""
    ctx = Context(positions, input_ids=positions.clamp(min=0) % 7)
    out, after = mixer(x, state, ctx)
    return out, after


def with_padding(
    x: Tensor, rows: Sequence[Sequence[bool]], start: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Spread ``x [B, S, D]`` over the S true places of each row, which are T long.

    Returns the wider ``[B, T, D]``, its positions from ``start`` on, and the places ``[B, T]``.
    What stands at padding is large on purpose: it must not leak.
    """
    keep = torch.tensor(rows)
    wide = torch.full((*keep.shape, x.shape[2]), 37.0, dtype=x.dtype)
    wide[keep] = x.reshape(-1, x.shape[2])
    positions = torch.where(keep, start + keep.to(torch.int64).cumsum(1) - 1, -1)
    return wide, positions, keep


def distance(a: Tensor | Mapping[str, Tensor], b: Tensor | Mapping[str, Tensor]) -> float:
    """The largest difference over the largest finite value of ``b`` (at least 1).

    Infinite where the shapes or keys differ, and where one of the two is NaN or infinite alone.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _between(a.double(), b.double()) if a.shape == b.shape else math.inf
    if isinstance(a, Mapping) and isinstance(b, Mapping) and set(a) == set(b):
        return max((distance(a[key], b[key]) for key in a), default=0.0)
    return math.inf


def _between(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    # Equal infinities, as in the state of a running maximum, are no difference.
    gap = torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf).max().item()
    size = b.abs().nan_to_num(0.0, 0.0).max().item()
    return float(gap / max(1.0, size))
