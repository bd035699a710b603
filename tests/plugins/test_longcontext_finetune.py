"""Fine-tuning for a longer context: the paper's plan, where it starts, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins import longcontext_cases as cases

from seqmix.errors import CheckpointError, ConfigError
from seqmix.extend import extend
from seqmix.model import Model
from seqmix.training.plan import learning_rate
from seqmix_longcontext.finetune import extension_plan, fine_tune, packed_text

pytest.importorskip("lightning_fabric")


@pytest.fixture
def task(tmp_path: Path) -> Any:
    path = tmp_path / "book.txt"
    path.write_text(cases.TEXT * 60, encoding="utf-8")
    return packed_text([path], 48, held_out=0.1, cache=str(tmp_path / "tokens"))


def extended(seed: int = 0) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return extend(Model(cases.config(vocab_size=256)), "yarn:2")


def test_the_plan_of_the_paper() -> None:
    plan = extension_plan(400, 64)
    assert plan.betas == (0.9, 0.95)
    assert plan.weight_decay == 0.0
    rates = [learning_rate(step, plan) for step in range(400)]
    assert rates[0] == pytest.approx(2e-5 / 20)
    assert rates[19:] == [pytest.approx(2e-5)] * 381
    assert extension_plan(10, 4, 1e-3, clip=None).warm_up == 10


def test_training_starts_from_the_given_weights(task: Any, tmp_path: Path) -> None:
    model = extended()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plan = extension_plan(6, 2, 1e-12, log_every=1, test_every=3)
    trainer = fine_tune(model, task, plan, tmp_path / "out")
    assert trainer.model.config.position == model.config.position
    for name, tensor in trainer.model.state_dict().items():
        # A vanishing rate moves nothing that could be seen.
        torch.testing.assert_close(tensor, before[name], atol=1e-6, rtol=0)


def test_the_loss_falls_and_the_given_model_stays(task: Any, tmp_path: Path) -> None:
    model = extended()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plan = extension_plan(30, 8, 1e-2, log_every=1, test_every=30)
    rows = fine_tune(model, task, plan, tmp_path / "out").standing.rows
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_killed_training_goes_on_to_the_same_end(task: Any, tmp_path: Path) -> None:
    plan = extension_plan(8, 2, 1e-3, log_every=1, test_every=4, save_every=4)
    whole = fine_tune(extended(), task, plan, tmp_path / "whole")

    def kill(trainer: Any) -> None:
        if trainer.standing.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fine_tune(extended(), task, plan, tmp_path / "killed", watch=kill)
    again = fine_tune(extended(), task, plan, tmp_path / "killed")
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


def test_another_start_is_refused(task: Any, tmp_path: Path) -> None:
    plan = extension_plan(2, 2, 1e-3, save_every=1, test_every=2)
    fine_tune(extended(), task, plan, tmp_path / "out")
    with pytest.raises(CheckpointError, match="began with other weights"):
        fine_tune(extended(seed=1), task, plan, tmp_path / "out")
    fine_tune(extended(seed=1), task, plan, tmp_path / "out", resume=False)


def test_rows_must_fit_the_context(task: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows of 48 tokens are longer than the context"):
        fine_tune(Model(cases.config(vocab_size=256)), task, extension_plan(2, 2), tmp_path)
