"""Rotary frequencies and their scalings, as pure functions in float64.

d rotary size, b base (theta), L original context in tokens, s scale factor; pair i of d/2 turns by
``b^(-2i/d)`` radians per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frequencies", "correction_range", "magnitude", "rope_frequencies", "yarn_frequencies"]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Radians per token of each pair, float64 ``[d/2]``, and the factor on cos and sin."""

    inv_freq: NDArray[np.float64]
    attention_factor: float = 1.0


def rope_frequencies(rotary_dim: int, theta: float) -> Frequencies:
    """The plain frequencies ``b^(-2i/d)`` (RoFormer, section 3.2.2)."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return Frequencies(theta**-exponents)


def yarn_frequencies(
    rotary_dim: int,
    theta: float,
    factor: float,
    original_context_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    *,
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Frequencies:
    """NTK-by-parts with YaRN's attention factor (YaRN, sections 3.2 and 3.3).

    Pairs that turn more than ``beta_fast`` times within the original context keep their frequency,
    those that turn less than ``beta_slow`` times are divided by ``factor``; between the two the
    blend is linear in the pair index, as every implementation has it. The attention factor is
    ``0.1 ln(s) + 1`` unless one is given.
    """
    plain = rope_frequencies(rotary_dim, theta).inv_freq
    low, high = correction_range(
        rotary_dim, theta, original_context_length, beta_fast, beta_slow, truncate=truncate
    )
    pairs = np.arange(rotary_dim // 2, dtype=np.float64)
    interpolated = np.clip((pairs - low) / (high - low), 0.0, 1.0)
    inv_freq = plain / factor * interpolated + plain * (1.0 - interpolated)
    return Frequencies(
        inv_freq, magnitude(factor) if attention_factor is None else attention_factor
    )


def correction_range(
    rotary_dim: int,
    theta: float,
    original_context_length: int,
    beta_fast: float,
    beta_slow: float,
    *,
    truncate: bool,
) -> tuple[float, float]:
    """Pair indices between which the ramp rises: ``beta_fast`` gives the lower one.

    Clamped to 0 and d - 1, not d/2 - 1, as released models were trained; equal ends are moved
    apart by 0.001. A range that lies outside altogether ends up at that end: every pair is kept
    where the context is very long, and all but the first are stretched where it is very short.
    """

    def pair_turning(times: float) -> float:
        turns = original_context_length / (times * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(theta))

    low, high = pair_turning(beta_fast), pair_turning(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = (min(max(end, 0), rotary_dim - 1) for end in (low, high))
    return low, high + (0.001 if low == high else 0)


def magnitude(factor: float, mscale: float = 1.0) -> float:
    """``0.1 mscale ln(s) + 1``, and 1 when nothing is stretched (YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
