"""seqmix eval lm-eval: tiny tasks from local files, and what goes wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.lm_eval_cases import CONTEXT, Bytes, direct, make_model, needs_harness

from seqmix.checkpoint import resolve
from seqmix.cli import invoke
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix.training.byte_tokens import byte_tokenizer
from seqmix_harness.language_model import make_language_model, rolling_windows
from seqmix_harness.scoring import Scorer
from seqmix_harness.tasks import preset_tasks


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_harness(monkeypatch)


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], **settings: Any) -> None:
    """A task of lm-eval whose data is a local file."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    content = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data), "train": str(data)}},
        "test_split": "test",
        "fewshot_split": "train",
        "metadata": {"version": 1.0},
        **settings,
    }
    # JSON is YAML.
    (folder / f"{name}.yaml").write_text(json.dumps(content), encoding="utf-8")


QUESTIONS = [
    {"question": "ab", "choices": ["c", "dd", "e"], "answer": 1},
    {"question": "xyz", "choices": ["q", "rr", "s"], "answer": 0},
    {"question": "m", "choices": ["n", "oo", "p"], "answer": 2},
    {"question": "hh", "choices": ["i", "jj", "k"], "answer": 1},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model, and three tasks."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf" / "datasets"))
    save_model(make_model(), tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(byte_tokenizer(), encoding="utf-8")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    write_task(
        tasks,
        "tiny_choice",
        QUESTIONS,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        doc_to_choice="{{choices}}",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    write_task(
        tasks,
        "tiny_perplexity",
        [{"text": "the cat sat on the mat and then on another mat"}, {"text": "so"}],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "byte_perplexity"}],
    )
    write_task(
        tasks,
        "tiny_text",
        [{"question": "ab", "answer": "c"}],
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 3},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    return tmp_path


@pytest.mark.usefixtures("harness")
def test_local_tasks_run_by_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "out" / "results.json"
    command = ["eval", "lm-eval", str(folder / "model"), "--batch", "2", "--out", str(out)]
    command += ["--include-path", str(folder / "tasks"), "--cache", str(folder / "answers")]
    names = "tiny_choice,tiny_perplexity,tiny_text"
    assert invoke([*command, "--tasks", names]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"tiny_choice +0 +acc ", shown)
    results = json.loads(out.read_text())
    model = Model.from_checkpoint(resolve(folder / "model")).eval()
    right = 0
    for row in QUESTIONS:
        # lm-eval puts a space between question and choice.
        scores = [
            direct(model, list(row["question"].encode()), list(f" {choice}".encode()))
            for choice in row["choices"]
        ]
        best = max(range(3), key=lambda i: scores[i].log_probability)
        right += best == row["answer"]
    assert results["results"]["tiny_choice"]["acc,none"] == pytest.approx(right / 4)
    rolled, size = 0.0, 0
    for text in ("the cat sat on the mat and then on another mat", "so"):
        for window in rolling_windows(list(text.encode()), 1, CONTEXT):
            rolled += direct(model, *window).log_probability
        size += len(text.encode())
    perplexity = 2.718281828459045 ** (-rolled / size)
    found = results["results"]["tiny_perplexity"]["byte_perplexity,none"]
    assert found == pytest.approx(perplexity, rel=1e-3)
    assert results["model"]["backend"] == "torch"
    # Everything is answered from the cache: the model is no longer asked.
    monkeypatch.setattr(Model, "forward", None)
    before = out.read_text()
    assert invoke([*command, "--tasks", names]) == 0
    assert json.loads(out.read_text())["results"] == json.loads(before)["results"]


@pytest.mark.full
@pytest.mark.usefixtures("harness")
def test_limits_shots_and_rope(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "results.json"
    seen: list[tuple[int, int]] = []
    score = Scorer.__call__

    def noted(self: Scorer, requests: Any, done: Any = None) -> Any:
        seen.extend((len(context), self.max_length) for context, _ in requests)
        return score(self, requests, done)

    monkeypatch.setattr(Scorer, "__call__", noted)
    command = ["eval", "lm-eval", str(folder / "model"), "--tasks", "tiny_choice", "--out"]
    command += [str(out), "--include-path", str(folder / "tasks"), "--limit", "2"]
    assert invoke([*command, "--num-fewshot", "1", "--rope", "yarn:2"]) == 0
    assert len(seen) == 2 * 3
    assert all(size > 6 and length == 2 * CONTEXT for size, length in seen)
    assert json.loads(out.read_text())["n-shot"]["tiny_choice"] == 1


@pytest.mark.usefixtures("harness")
def test_unknown_tasks_and_data_that_cannot_be_had(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "lm-eval", str(folder / "model"), "--include-path", str(folder / "tasks")]
    assert invoke(command) == 2
    assert "no task was asked for" in capsys.readouterr().err
    (folder / "tasks" / "tiny_choice.jsonl").unlink()
    assert invoke([*command, "--tasks", "tiny_choice"]) == 2
    assert "lm-eval could not run tiny_choice" in capsys.readouterr().err
    assert invoke([*command, "--tasks", "tiny_choice", "--include-path", "nowhere"]) == 2
    assert "nowhere: is no folder of task files" in capsys.readouterr().err
    (folder / "model" / "tokenizer.json").unlink()
    assert invoke([*command, "--tasks", "tiny_choice"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.usefixtures("harness")
def test_the_tasks_of_the_preset_are_known_to_lm_eval(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from seqmix_harness.tasks import find_tasks

    find_tasks([task.name for task in preset_tasks("open-llm")], [])
    command = ["eval", "lm-eval", str(folder / "model"), "--tasks", "helaswag"]
    assert invoke(command) == 2
    assert "knows no task 'helaswag'; did you mean 'hellaswag'" in capsys.readouterr().err


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"seqmix\[harness\]"):
        make_language_model(make_model(), Bytes())
