"""xLSTM at many lengths: the laws of its mixers, and exported models of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import seqmix
from seqmix.backend import Executable
from seqmix.config import ModelConfig
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.model import Model
from seqmix.state import State, initial_state
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config
from seqmix_xlstm.mlstm_mixer import MLSTM
from seqmix_xlstm.mlstm_up_mixer import MLSTMUp
from seqmix_xlstm.slstm_mixer import SLSTM

WIDTH = 24
LENGTHS: list[Any] = [
    1,
    2,
    15,
    65,
    *(pytest.param(n, marks=pytest.mark.full) for n in (63, 64, 200)),
]
MIXERS: list[tuple[type[SequenceMixer], dict[str, Any]]] = [
    (MLSTM, {"heads": 3}),
    (MLSTMUp, {"heads": 3, "round_up_to": 12}),
    (SLSTM, {"heads": 3}),
    (SLSTM, {"heads": 3, "forget_gate": "exp"}),
]


def built(cls: type[SequenceMixer], options: dict[str, Any]) -> SequenceMixer:
    torch.manual_seed(0)
    mixer = cls(cls.Config(**options), WIDTH).double()
    for parameter in mixer.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return mixer.requires_grad_(False)


def run(mixer: SequenceMixer, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
    return mixer(x, state, Context(positions))


def start(mixer: SequenceMixer, batch: int) -> State:
    """States in float64 too: handed on in float32 they would cost seven digits."""
    state = initial_state(mixer.state_spec(), batch, dtype=torch.float64)
    return {key: value.double() for key, value in state.items()}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", MIXERS, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_the_laws(case: Any, length: int) -> None:
    mixer = built(*case)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    kept = x.clone()
    positions = torch.arange(length).repeat(2, 1)
    whole, last = run(mixer, x, start(mixer, 2), positions)
    assert torch.equal(x, kept)
    pieces, state = [], start(mixer, 2)
    for part in np.split(np.arange(length), sorted({length // 3, length // 2 + 1} - {0, length})):
        if len(part):
            y, state = run(mixer, x[:, part], state, positions[:, part])
            pieces.append(y)
    close(torch.cat(pieces, 1), whole)
    for key, value in last.items():
        close(state[key], value)
    later = x.clone()
    later[:, length // 2 :] += 1
    changed, _ = run(mixer, later, start(mixer, 2), positions)
    close(changed[:, : length // 2], whole[:, : length // 2])


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("case", MIXERS, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_padding_anywhere(case: Any, length: int) -> None:
    mixer = built(*case)
    x = torch.randn(1, length, WIDTH, dtype=torch.float64)
    real = torch.rand(length) < 0.6
    real[length // 2] = True
    positions = torch.where(real, real.cumsum(0) - 1, -1).unsqueeze(0)
    found, last = run(mixer, x, start(mixer, 1), positions)
    alone, wanted = run(mixer, x[:, real], start(mixer, 1), positions[:, real])
    close(found[:, real], alone)
    assert found[:, ~real].abs().sum() == 0
    for key, value in wanted.items():
        close(last[key], value)


def close(found: Tensor, wanted: Tensor, limit: float = 1e-9) -> None:
    """Within 1e-9 of the largest value."""
    assert found.shape == wanted.shape
    assert found.numel() == 0 or (found - wanted).abs().max() <= limit * (1 + wanted.abs().max())


KINDS: dict[str, ModelConfig] = {
    "mlstm": xlstm_block_stack_config(61, 32, 2, heads=2),
    "slstm": xlstm_block_stack_config(61, 32, 2, heads=2, slstm_at="all"),
    "mixed": xlstm_block_stack_config(61, 32, 4, heads=2, ratio="3:1"),
    "large": xlstm_large_config(61, 32, 2, heads=2),
}


@pytest.fixture(scope="module", params=list(KINDS))
def exported(request: pytest.FixtureRequest) -> tuple[Model, Executable]:
    """A model with weights far from fresh ones, and its file."""
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = Model(KINDS[request.param]).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return model, seqmix.compile(model, "onnxruntime", cache=False, options={"threads": 1})


@pytest.mark.parametrize("length", [1, 7, 50, 64, 333])
def test_one_export_is_right_at_every_length(
    exported: tuple[Model, Executable], length: int
) -> None:
    model, compiled = exported
    ids = torch.randint(0, 61, (2, length + 5))
    positions = torch.arange(length + 5).repeat(2, 1)
    wanted, _ = model(ids, positions)
    first, states = compiled(ids[:, :length], positions[:, :length])
    after, _ = compiled(ids[:, length:], positions[:, length:], states)
    found = torch.cat([first, after], 1)
    assert (found - wanted).abs().max() <= 2e-5 * (1 + wanted.abs().max())
