"""Perplexity over lengths: against plain loops, with results that outlive a kill."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.plugins import longcontext_cases as cases

from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix_longcontext import perplexity as module
from seqmix_longcontext.methods import parse_method, parse_methods
from seqmix_longcontext.perplexity import measure_perplexity
from seqmix_longcontext.plan import Plan
from seqmix_longcontext.subject import Subject
from seqmix_longcontext.windows import cut_documents


def documents(count: int = 2, length: int = 48) -> list[Any]:
    return cut_documents("text", cases.ids(count * length + 5), count, length)


def measure(methods: str, plan: Plan, out: Path, model: Model | None = None, **more: Any) -> Any:
    subject = Subject.of(model or cases.model())
    found = parse_methods(methods, subject.checkpoint.config)
    return measure_perplexity(subject, found, plan, out, chunk=16, **more)


def losses_of(model: Model, ids: tuple[int, ...]) -> np.ndarray:
    row = torch.tensor([list(ids)])
    logits, _ = model(row, torch.arange(len(ids)).unsqueeze(0))
    return F.cross_entropy(logits[0, :-1], row[0, 1:], reduction="none").numpy()


@pytest.mark.parametrize("method", ["none", "yarn:2", "dynamic-ntk", "dynamic-ntk+mode=per_window"])
def test_single_windows_are_documents_cut_at_the_length(method: str, tmp_path: Path) -> None:
    plan = Plan(documents(), [16, 40, 48], [2, 2, 1])
    found = measure(method, plan, tmp_path).rows
    model = parse_method(method).apply(cases.model())
    for row in found:
        every = [losses_of(model, d.ids[: row["length"]]) for d in plan.of(row["length"])]
        expected = math.exp(np.concatenate(every).mean())
        assert row["perplexity"] == pytest.approx(expected, rel=1e-5)
        assert row["documents"] == len(every)


def test_sliding_windows_against_the_plain_loop(tmp_path: Path) -> None:
    """Press et al.: of each window only what the one before had not reached counts."""
    model, (document, _) = cases.model(), documents()
    row = measure("none", Plan([document], [20], mode="sliding", stride=6), tmp_path).rows[0]
    ids, done, windows = document.ids, 0, []
    for start in range(0, len(ids), 6):
        stop = min(start + 20, len(ids))
        new = min(stop - done, stop - start - 1)
        windows.append(losses_of(model, ids[start:stop])[-new:])
        done = stop
        if stop == len(ids):
            break
    assert row["windows"] == len(windows)
    assert row["targets"] == len(ids) - 1
    assert row["perplexity"] == pytest.approx(math.exp(np.concatenate(windows).mean()), rel=1e-5)
    by_window = math.exp(np.mean([w.mean() for w in windows]))
    assert row["window_weighted"] == pytest.approx(by_window, rel=1e-5)
    assert abs(row["window_weighted"] - row["perplexity"]) > 1e-6


def test_one_pass_serves_all_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = module.token_losses

    def counting(runner: Any, ids: Any, **options: Any) -> Any:
        read.append(len(ids))
        return original(runner, ids, **options)

    monkeypatch.setattr(module, "token_losses", counting)
    plan = Plan(documents(), [16, 32, 48], [2, 2, 1])
    told: list[int] = []
    measure("none", plan, tmp_path, told=lambda what, count: told.append(count))
    assert read == [48, 32]
    assert sum(told) == plan.tokens == 80
    read.clear()
    measure("dynamic-ntk+mode=per_window", plan, tmp_path)
    assert sorted(read) == [16, 16, 32, 32, 48]


@pytest.mark.full
def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(documents(), [16, 48])
    whole = measure("none,yarn:2", plan, tmp_path / "whole")
    told: list[str] = []

    def kill(what: str, count: int) -> None:
        told.append(what)
        if len(set(told)) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure("none,yarn:2", plan, tmp_path / "killed", told=kill)
    assert len(list((tmp_path / "killed" / "losses").iterdir())) == 2
    read: list[int] = []
    original = module.token_losses

    def counting(runner: Any, ids: Any, **options: Any) -> Any:
        read.append(len(ids))
        return original(runner, ids, **options)

    monkeypatch.setattr(module, "token_losses", counting)
    again = measure("none,yarn:2", plan, tmp_path / "killed")
    assert read == [48, 48]
    assert again == whole
    for name in ("perplexity.csv", "documents.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_kept_losses_are_those_of_the_same_weights(tmp_path: Path) -> None:
    plan = Plan(documents(1), [16])
    one = measure("none", plan, tmp_path).rows
    other = measure("none", plan, tmp_path, cases.model(seed=1)).rows
    assert one != other
    assert measure("none", plan, tmp_path).rows == one


@pytest.mark.full
def test_damaged_files_are_read_anew(tmp_path: Path) -> None:
    plan = Plan(documents(1), [16])
    one = measure("none", plan, tmp_path).rows
    (kept,) = (tmp_path / "losses").iterdir()
    for content in ("{", "[]", json.dumps({"about": {}, "result": {"losses": [1.0]}})):
        kept.write_text(content)
        assert measure("none", plan, tmp_path).rows == one


def test_the_tables_on_disk(tmp_path: Path) -> None:
    result = measure("none,linear:2", Plan(documents(), [16, 32]), tmp_path)
    with (tmp_path / "perplexity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["method"], r["length"]) for r in rows] == [
        ("none", "16"), ("none", "32"), ("linear:2", "16"), ("linear:2", "32"),
    ]  # fmt: skip
    for row, expected in zip(rows, result.rows, strict=True):
        assert float(row["perplexity"]) == pytest.approx(expected["perplexity"], rel=1e-5)
    with (tmp_path / "documents.csv").open() as file:
        assert [r["start"] for r in csv.DictReader(file)] == ["0", "50"] * 4


def test_learned_positions_have_an_end(tmp_path: Path) -> None:
    model = cases.model(position={"kind": "learned", "max_positions": 40}, head_dim=None)
    assert measure("none", Plan(documents(), [40]), tmp_path, model).rows
    with pytest.raises(ConfigError, match="has learned 40 positions, it cannot read 48 tokens"):
        measure("none", Plan(documents(), [16, 48]), tmp_path, model)
