"""What the tests of the long convolutions share: golden values, mixers to run, the definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqmix.config import build_config
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, initial_state

GOLDEN = Path(__file__).parent.parent / "golden" / "zoology"


def golden(name: str) -> dict[str, Tensor]:
    """Parameters, inputs and outputs of another implementation, by the names it has."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return {key: torch.from_numpy(stored[key]) for key in stored.files}


def build(cls: type[SequenceMixer], options: dict[str, Any], width: int = 8) -> Any:
    torch.manual_seed(3)
    return cls(build_config(cls.Config, options, "here"), width)


def load(mixer: SequenceMixer, weights: Mapping[str, Tensor]) -> None:
    """Every parameter of a mixer, in its shape."""
    named = dict(mixer.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name].reshape(parameter.shape))


def fresh(mixer: SequenceMixer, batch: int) -> State:
    return initial_state(mixer.state_spec(), batch, dtype=next(mixer.parameters()).dtype)


def run(mixer: SequenceMixer, x: Tensor, *cuts: int) -> Tensor:
    """The outputs for ``x``, computed in the pieces between ``cuts``."""
    state, out = fresh(mixer, x.shape[0]), []
    for start, stop in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        positions = torch.arange(start, stop).expand(x.shape[0], -1)
        y, state = mixer(x[:, start:stop], state, Context(positions))
        out.append(y)
    return torch.cat(out, dim=1)


def narrowed(mixer: SequenceMixer, dtype: torch.dtype) -> Any:
    """A copy with its weights rounded to ``dtype``."""
    narrow: Any = type(mixer)(mixer.config, mixer.width)
    narrow.load_state_dict(mixer.state_dict())
    return narrow.to(dtype)


def convolved(u: np.ndarray, filter: np.ndarray) -> np.ndarray:
    """``y[t] = sum_n filter[n] u[t - n]``, term by term; ``u [B, S, D]``, ``filter [D, L]``."""
    y = np.zeros_like(u)
    for t in range(u.shape[1]):
        for n in range(min(t + 1, filter.shape[1])):
            y[:, t] += filter[:, n] * u[:, t - n]
    return y


def exact(mixer: SequenceMixer) -> dict[str, np.ndarray]:
    """The parameters of a mixer in float64."""
    return {name: p.detach().double().numpy() for name, p in mixer.named_parameters()}


def check_nothing_wraps_around(mixer: SequenceMixer, t: int, loud: float = 100) -> None:
    """Of tokens that are louder from ``t`` on, next to nothing is heard in earlier ones."""
    x = torch.randn(1, 256, 8)
    louder = x.clone()
    louder[:, t:] += loud
    before, after = run(mixer, x), run(mixer, louder)
    heard, signal = (before - after).abs(), before.abs().max()
    assert heard[:, :t].max() < 1e-4 * signal
    assert heard[:, t:].max() > 1e-3 * signal


def check_16_bits(mixer: Any, exact: Any, x: Tensor, tolerance: float) -> None:
    """A narrow mixer trains, and gives in pieces what its wide twin gives, near enough."""
    dtype = next(mixer.parameters()).dtype
    found, wanted = run(mixer, x.to(dtype), x.shape[1] - 1), run(exact, x)
    assert found.dtype == dtype
    assert (found.float() - wanted).abs().max() < tolerance * wanted.abs().max()
    found.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
