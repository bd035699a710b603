"""Models on the triton backend, in the interpreter: torch's logits, steps in place, its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips
import torch
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.backend import Executable, Program, Steps
from seqmix.compile import program_of
from seqmix.errors import BackendError
from seqmix.generate import generate_all
from seqmix.model import Model, initial_states, unflatten_states
from seqmix_triton import growing, probe
from seqmix_triton.backend import TritonBackend
from seqmix_triton.session import TritonExecutable
from seqmix_triton.steps import StaticSteps

NEAR: dict[str, float] = {"rtol": 2e-5, "atol": 2e-4}


@pytest.fixture(scope="module")
def program() -> Program:
    steps = [tiny.ATTENTION, [tiny.WINDOW, tiny.SWIGLU], tiny.MLP]
    return program_of(tiny.model(blocks=[{"steps": steps}]))


@pytest.fixture(scope="module")
def pair(program: Program) -> tuple[Model, Executable]:
    model = program.model
    assert isinstance(model, Model)
    return model, seqmix.compile(program, TritonBackend(), cache=False)


def logits(model: Model, ids: Tensor, positions: Tensor) -> Tensor:
    first = unflatten_states(model, initial_states(model, len(ids)))
    return model(ids, positions, first)[0]


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 6)])
def test_logits_are_those_of_torch_in_any_pieces(
    pair: tuple[Model, Executable], batch: int, length: int
) -> None:
    model, executable = pair
    ids, positions = tiny.tokens(batch, length)
    wanted = logits(model, ids, positions)
    torch.testing.assert_close(executable(ids, positions)[0], wanted, **NEAR)
    states, pieces = None, []
    for start in range(0, length, 5):
        piece = slice(start, start + 5)
        out, states = executable(ids[:, piece], positions[:, piece], states)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), wanted, **NEAR)


@pytest.mark.parametrize("where", [pytest.param("left", marks=pytest.mark.full), "middle"])
def test_padding_changes_nothing(pair: tuple[Model, Executable], where: str) -> None:
    model, executable = pair
    row = tiny.tokens(1, 9)[0][0]
    wanted = logits(model, row.unsqueeze(0), torch.arange(9).unsqueeze(0))
    ids, positions = tiny.padded(row, 14, where)
    found = executable(ids, positions)[0][positions >= 0]
    torch.testing.assert_close(found, wanted[0], **NEAR)


def test_mixers_and_norms_are_kernels(pair: tuple[Model, Executable]) -> None:
    assert {"attention", "rms_norm", "rotary"} <= set(pair[1].report.kernels)


def test_arguments_stay_and_results_are_their_own(pair: tuple[Model, Executable]) -> None:
    _, executable = pair
    ids, positions = tiny.tokens(2, 3)
    first, states = executable(ids, positions)
    kept = {name: tensor.clone() for name, tensor in states.items()}
    again, _ = executable(ids, positions, states)
    assert all(torch.equal(states[name], tensor) for name, tensor in kept.items())
    assert torch.equal(executable(ids, positions, states)[0], again)
    owned = [first, again, *states.values()]
    assert len({t.untyped_storage().data_ptr() for t in owned}) == len(owned)


def test_steps_in_place_are_calls(
    pair: tuple[Model, Executable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_LEAST_ROOM", 4)
    model, executable = pair
    ids, positions = tiny.tokens(2, 7)
    wanted = logits(model, ids, positions)
    _, before = executable(ids[:, :3], positions[:, :3])
    kept = {name: tensor.clone() for name, tensor in before.items()}
    steps = executable.steps(before)
    assert isinstance(steps, StaticSteps)
    rooms = set()
    for t in range(3, 7):
        out = steps(ids[:, t : t + 1], positions[:, t : t + 1])
        torch.testing.assert_close(out[:, 0], wanted[:, t], **NEAR)
        rooms.add(steps.room)
    assert rooms == {4, 8}
    _, after = executable(ids[:, 3:], positions[:, 3:], before)
    torch.testing.assert_close(steps.states(), after, **NEAR)
    assert all(torch.equal(before[name], tensor) for name, tensor in kept.items())


@pytest.mark.full
def test_a_row_that_has_ended_takes_padding(pair: tuple[Model, Executable]) -> None:
    model, executable = pair
    ids, positions = tiny.tokens(2, 6)
    steps = executable.steps(executable(ids[:, :4], positions[:, :4])[1])
    hole = torch.tensor([[-1], [4]])
    steps(ids[:, 4:5], hole)
    found = steps(ids[:, 5:], torch.tensor([[4], [5]]))
    shorter = torch.cat([ids[:1, :4], ids[:1, 5:]], 1)
    wanted = logits(model, shorter, torch.arange(5).unsqueeze(0))[:, -1]
    torch.testing.assert_close(found[:1, 0], wanted, **NEAR)


def test_steps_refuse_what_does_not_fit(pair: tuple[Model, Executable]) -> None:
    _, executable = pair
    ids, positions = tiny.tokens(2, 3)
    states = executable(ids, positions)[1]
    with pytest.raises(BackendError, match="B is 1 by axis 0 of 'input_ids', but 2"):
        executable.steps(states)(ids[:1, :1], positions[:1, :1])
    with pytest.raises(BackendError, match="input_ids"):
        executable.steps(states)(ids[:, :1].int(), positions[:, :1])


@pytest.mark.full
def test_a_state_that_grows_otherwise_takes_plain_steps() -> None:
    selective = {"kind": "selective_attention", "heads": 2, "head_dim": 6, "selection": "random"}
    model = tiny.model([selective])
    executable = seqmix.compile(model, TritonBackend(), cache=False)
    steps = executable.steps(executable.initial_state(1))
    assert type(steps) in (Steps, StaticSteps)
    ids, positions = tiny.tokens(1, 6)
    wanted = logits(model, ids, positions)
    found = [steps(ids[:, t : t + 1], positions[:, t : t + 1]).clone() for t in range(6)]
    torch.testing.assert_close(torch.cat(found, 1), wanted, **NEAR)


@pytest.mark.full
def test_generation_is_that_of_torch(pair: tuple[Model, Executable]) -> None:
    prompts = [[5, 1, 7, 9], [3, 2]]
    model, executable = pair
    options: dict[str, Any] = {"max_new_tokens": 2}
    assert generate_all(executable, prompts, **options) == generate_all(model, prompts, **options)


def test_a_saved_folder_gives_the_same(pair: tuple[Model, Executable], tmp_path: Path) -> None:
    ids, positions = tiny.tokens(2, 5)
    pair[1].save(tmp_path / "saved")
    loaded = TritonBackend().load(tmp_path / "saved")
    assert isinstance(loaded, TritonExecutable)
    assert torch.equal(loaded(ids, positions)[0], pair[1](ids, positions)[0])
    assert loaded.report.kernels == pair[1].report.kernels


def test_wrong_targets_options_and_ids(program: Program, pair: tuple[Model, Executable]) -> None:
    _, executable = pair
    with pytest.raises(BackendError, match="no target 'cuda' here; known: cpu"):
        seqmix.compile(program, TritonBackend(), target="cuda", cache=False)
    with pytest.raises(BackendError, match="no option 'tune'"):
        seqmix.compile(program, TritonBackend(), options={"tune": 1}, cache=False)
    ids, positions = tiny.tokens(1, 3)
    with pytest.raises(BackendError, match=r"input_ids should be in 0\.\.52, found 53"):
        executable(ids.fill_(tiny.VOCAB), positions)


def test_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TritonBackend().probe().devices == ("cpu",)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is built for CPUs alone; install" in probe.probe().reason
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no device: " in probe.probe().reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    assert "Tesla V100 has compute capability 7.0, 8.0 or newer" in probe.probe().reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert probe.probe().devices == ("cuda",)
    monkeypatch.setattr(probe.shutil, "which", lambda name: None)
    assert "needs a C compiler" in probe.probe().reason
    monkeypatch.setattr("triton.__version__", "3.5.1")
    assert "Triton 3.5.1 is too old, 3.6 or newer is needed" in probe.probe().reason
