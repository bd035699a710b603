"""Recall is learned: a hybrid solves MQAR, and the report says where it is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqmix import registry
from seqmix.cli import invoke
from seqmix.config import Kind
from seqmix.families import gpt_config
from seqmix.training.plan import Plan, Training
from seqmix.training.rows import IGNORED, ArrayRows
from seqmix.training.task import build_task
from seqmix.training.trainer import Trainer
from seqmix_recall.accuracy import accuracy_by_position, recall_report

pytest.importorskip("lightning_fabric")

TASKS = (
    "associative_recall",
    "compositional_recall",
    "forgetting_recall",
    "induction_heads",
    "mqar",
)


def hybrid(task: dict[str, Any], width: int, **plan: Any) -> Training:
    """A short convolution, then attention, nothing else: the smallest model that recalls."""
    attention = {"kind": "attention", "heads": 1, "head_dim": width}
    model = gpt_config(
        task["vocab_size"],
        width,
        2,
        mixer=[{"kind": "base_conv", "taps": 3}, attention],
        mlp=None,
        position="none",
        context_length=task["length"],
        init_std=plan.pop("init_std", 0.02),
    )
    options = {"warm_up": 20, "log_every": 20, "test_every": 20, "save_every": 1000, **plan}
    task = {"kind": "mqar", **task}
    return Training(model=model, task=Kind(**task), training=Plan(**options))


def test_a_hybrid_learns_to_recall(tmp_path: Path) -> None:
    training = hybrid(
        {"vocab_size": 16, "length": 16, "pairs": 2, "train_rows": 4000, "test_rows": 200},
        32,
        steps=240,
        batch=32,
        rate=1e-2,
        init_std=0.2,
        stop="accuracy",
        stop_at=0.9,
    )
    trainer = Trainer(training, tmp_path)
    rows = trainer.run().rows
    # By chance it would be one of the two values of the row.
    assert rows[-1]["held_out_accuracy"] >= 0.9
    report = trainer.task.report(trainer.model)
    assert report["accuracy"] == rows[-1]["held_out_accuracy"]
    assert report["questions"] == 400
    assert [place["position"] for place in report["by_position"]] == [4, 6, 8, 10, 12, 14]


@pytest.mark.full
@pytest.mark.parametrize(("vocab_size", "length", "seed"), [(64, 32, 0), (64, 32, 1), (256, 64, 0)])
def test_a_hybrid_solves_mqar(tmp_path: Path, vocab_size: int, length: int, seed: int) -> None:
    task = {"vocab_size": vocab_size, "length": length, "train_rows": 20_000, "test_rows": 500}
    training = hybrid(
        task, 64, steps=600, batch=64, rate=1e-2, seed=seed, stop="accuracy", stop_at=0.99
    )
    trainer = Trainer(training, tmp_path)
    trainer.run()
    report = trainer.task.report(trainer.model)
    assert report["accuracy"] > 0.95
    assert all(p["accuracy"] > 0.9 for p in report["by_position"] if p["questions"] > 50)


class Echo(torch.nn.Module):
    """Answers with the token that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(()))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, list]:
        return torch.nn.functional.one_hot(ids, 9) * self.one, []


def test_accuracy_is_counted_place_by_place() -> None:
    inputs = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [1, 1, 1, 1]])
    targets = np.array(
        [[IGNORED, 2, 0, IGNORED], [IGNORED, 6, 7, IGNORED], [IGNORED, 2, 1, IGNORED]]
    )
    rows = ArrayRows(inputs, targets)
    for at_once in (1, 2, 5):
        right, asked = accuracy_by_position(Echo(), rows, at_once)
        assert right.tolist() == [0, 2, 2, 0]
        assert asked.tolist() == [0, 3, 3, 0]
    report = recall_report(Echo(), rows)
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert report["by_position"][0] == {"position": 1, "questions": 3, "accuracy": 2 / 3}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_found_by_its_name(name: str) -> None:
    assert name in registry.names("tasks")
    length = 33 if name == "associative_recall" else 32
    kind = Kind(kind=name, vocab_size=60, length=length, train_rows=30, test_rows=20)
    task = build_task(kind)
    assert (len(task.train), len(task.held_out), task.vocab_size) == (30, 20, 60)
    assert not np.array_equal(task.train.inputs[:20], task.held_out.inputs)
    batch = task.train.take(np.array([3, 1]))
    assert batch.inputs.dtype == torch.int64
    assert batch.inputs.shape == (2, length)
    assert batch.asked() > 0


def test_the_command_reports_recall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"vocab_size": 16, "length": 16, "pairs": 2, "train_rows": 64, "test_rows": 20}
    training = hybrid(task, 16, steps=3, batch=16)
    config = tmp_path / "plan.json"
    config.write_text(training.model_dump_json())
    assert invoke(["train", str(config), "-o", str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["questions"] == 40
    assert printed["accuracy"] == printed["held_out_accuracy"]
