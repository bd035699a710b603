"""Rotary frequencies and their scalings, as pure functions in float64.

d rotary size, b base (theta), L original context in tokens, s scale factor; pair i of d/2 turns by
``b^(-2i/d)`` radians per token.

The functions that take a scale work on numpy and on torch alike: s is a number, or a float64 tensor
``[..., 1]`` in a graph, and then the spectra are tensors too (:func:`constants_like`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Array",
    "Frequencies",
    "Scale",
    "blend",
    "constants_like",
    "correction_range",
    "interpolate",
    "magnitude",
    "ntk_exponents",
    "pair_ramp",
    "rope_frequencies",
    "stretch_base",
    "turn_ramp",
    "yarn_frequencies",
]

Array: TypeAlias = NDArray[np.float64]
Scale: TypeAlias = "float | Tensor"


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Radians per token of each pair, float64 ``[d/2]``, and the factor on cos and sin.

    ``logit_factor`` is a factor on the whole logit, beside the rotation.
    """

    inv_freq: Array
    attention_factor: float = 1.0
    logit_factor: float = 1.0


def rope_frequencies(rotary_dim: int, theta: float) -> Frequencies:
    """The plain frequencies ``b^(-2i/d)`` (RoFormer, section 3.2.2)."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return Frequencies(theta**-exponents)


def interpolate(plain: Any, s: Scale) -> Any:
    """Position interpolation: every frequency over s (YaRN, equation 10; Chen et al. 2023)."""
    return plain / s


def stretch_base(plain: Any, exponents: Any, s: Scale) -> Any:
    """NTK-aware: the base becomes ``b s^(d/(d-2))`` (YaRN, section 3.1, definition 1).

    Written as a factor ``s^(-2i/(d-2))``: the first pair stays, the last one is divided by s.
    """
    return plain * s**-exponents


def ntk_exponents(rotary_dim: int) -> Array:
    """``2i / (d-2)`` of each pair: from 0 to 1."""
    return np.arange(rotary_dim // 2, dtype=np.float64) / max(rotary_dim // 2 - 1, 1)


def blend(plain: Any, interpolated: Any, s: Scale) -> Any:
    """NTK-by-parts: a part of each frequency is divided by s, the rest kept (YaRN, equation 13)."""
    return plain / s * interpolated + plain * (1.0 - interpolated)


def turn_ramp(
    inv_freq: Array, original_context_length: int, beta_fast: float, beta_slow: float
) -> Array:
    """The interpolated part of each pair, linear in its turns within L, as the paper has it.

    1 below ``beta_slow`` turns and 0 above ``beta_fast`` (YaRN, equation 12).
    """
    turns = original_context_length * inv_freq / (2 * math.pi)
    ramp: Array = 1.0 - np.clip((turns - beta_slow) / (beta_fast - beta_slow), 0.0, 1.0)
    return ramp


def pair_ramp(rotary_dim: int, low: float, high: float) -> Array:
    """The interpolated part of each pair, linear in its index, as every implementation has it."""
    pairs = np.arange(rotary_dim // 2, dtype=np.float64)
    ramp: Array = np.clip((pairs - low) / (high - low), 0.0, 1.0)
    return ramp


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
    blend is linear in the pair index. The attention factor is ``0.1 ln(s) + 1`` unless one is
    given.
    """
    plain = rope_frequencies(rotary_dim, theta).inv_freq
    low, high = correction_range(
        rotary_dim, theta, original_context_length, beta_fast, beta_slow, truncate=truncate
    )
    inv_freq = blend(plain, pair_ramp(rotary_dim, low, high), factor)
    return Frequencies(
        inv_freq, float(magnitude(factor)) if attention_factor is None else attention_factor
    )


def magnitude(s: Scale, mscale: float = 1.0) -> Any:
    """``0.1 mscale ln(s) + 1``, and 1 when nothing is stretched (YaRN, equation 22)."""
    if isinstance(s, Tensor):
        return 0.1 * mscale * torch.log(s.clamp(min=1.0)) + 1.0
    return 1.0 if s <= 1 else 0.1 * mscale * math.log(s) + 1.0


def constants_like(s: Scale, *arrays: Array) -> tuple[Any, ...]:
    """The arrays as they are for a number, and as float64 tensors beside a tensor."""
    if not isinstance(s, Tensor):
        return arrays
    # By way of lists: under torch.export these are constants of the graph.
    return tuple(torch.tensor(a.tolist(), dtype=torch.float64, device=s.device) for a in arrays)
