"""What the tests of RWKV, linear attention, retention and mixed filters share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqmix.config import BlockConfig, Kind, ModelConfig, build_config
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.model import Model
from seqmix.state import State
from seqmix.testing.inputs import fresh_state

GOLDEN = Path(__file__).parents[1] / "golden" / "zoology"

__all__ = [
    "GOLDEN",
    "at_once",
    "build",
    "by_steps",
    "check_16_bits",
    "check_pieces_train_alike",
    "fresh",
    "golden",
    "positions",
]


def build(
    cls: type[SequenceMixer],
    options: dict[str, Any],
    width: int = 24,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """The mixer with weights of about 0.4, so that each of them matters."""
    torch.manual_seed(3)
    mixer = cls(build_config(cls.Config, options, "here"), width)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return mixer.to(dtype)


def fresh(mixer: SequenceMixer, batch: int) -> State:
    """The state before the first token, in float64 for a mixer that is."""
    return fresh_state(mixer, batch, next(mixer.parameters()).dtype)


def positions(start: int, stop: int, batch: int) -> Context:
    """The context of tokens without padding."""
    return Context(torch.arange(start, stop).expand(batch, -1))


def at_once(mixer: SequenceMixer, x: Tensor) -> tuple[Tensor, State]:
    """A whole sequence from an empty state."""
    y, after = mixer(x, fresh(mixer, x.shape[0]), positions(0, x.shape[1], x.shape[0]))
    return y, after


def by_steps(mixer: SequenceMixer, x: Tensor) -> tuple[Tensor, State]:
    """Token by token, as text is generated."""
    state, out = fresh(mixer, x.shape[0]), []
    for t in range(x.shape[1]):
        y, state = mixer(x[:, t : t + 1], state, positions(t, t + 1, x.shape[0]))
        out.append(y)
    return torch.cat(out, dim=1), state


def golden(name: str) -> dict[str, Tensor]:
    """What another implementation computed."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def check_16_bits(kind: str, options: dict[str, Any], dtype: str, tolerance: float) -> None:
    """A model in 16 bits computes what it does in 32, at once and by steps, and trains."""
    config = ModelConfig(
        vocab_size=31,
        width=24,
        context_length=64,
        blocks=[BlockConfig(repeat=2, steps=[Kind(kind=kind, **options)])],
        dtype="f32",
    )
    torch.manual_seed(5)
    exact = Model(config)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model = Model(config.model_copy(update={"dtype": dtype}))
    model.load_state_dict(exact.state_dict())
    tokens = torch.randint(0, 31, (2, 9), generator=generator)
    places = torch.arange(9).expand(2, -1)
    wanted, _ = exact(tokens, places)
    logits, _ = model(tokens, places)
    allowed = tolerance * wanted.abs().max()
    assert logits.dtype == model.dtype
    assert (logits.float() - wanted).abs().max() < allowed
    states = None
    for t in range(9):
        last, states = model(tokens[:, t : t + 1], places[:, t : t + 1], states)
    assert (last[:, 0].float() - wanted[:, -1]).abs().max() < allowed
    for state, spec in zip(states, model.state_specs(), strict=True):
        for key, tensor in state.items():
            assert tensor.dtype == (torch.float32 if spec[key].dtype == "f32" else model.dtype)
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def check_pieces_train_alike(mixer: SequenceMixer, width: int, length: int = 9) -> None:
    """Two pieces, the state handed on with its history, give the gradients of the whole."""
    x = torch.randn(2, length, width, dtype=torch.float64)
    weights = list(mixer.parameters())
    y, last = at_once(mixer, x)
    loss = y.square().sum() + sum(t.sin().sum() for t in last.values())
    wanted = torch.autograd.grad(loss, weights)
    cut = length // 2
    first, state = at_once(mixer, x[:, :cut])
    second, last = mixer(x[:, cut:], state, positions(cut, length, 2))
    loss = first.square().sum() + second.square().sum() + sum(t.sin().sum() for t in last.values())
    for found, grad in zip(torch.autograd.grad(loss, weights), wanted, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-9, atol=1e-9)
