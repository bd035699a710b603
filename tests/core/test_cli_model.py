"""The commands that take a model, on a tiny one with a tokenizer of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core import tiny

from seqmix import registry
from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.cli import invoke
from seqmix.errors import BackendError
from seqmix.generate import generate
from seqmix.model import Model
from seqmix.storage import load_model, save_model
from seqmix.weights import Weights
from seqmix_ir import parse

Capture = pytest.CaptureFixture[str]
STEPS: list[Any] = [{**tiny.ATTENTION, "heads": 1}]
NAME = "toy"


def make() -> Model:
    blocks = [{"steps": STEPS}]
    return tiny.model(blocks=blocks, name=NAME, context_length=24)


class Letters:
    """A tokenizer: one id per letter, in two steps, so that the decoder holds something back."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) - ord("a") for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        return "z" + "".join(message["content"] for message in messages) + "z"

    def decoder(self) -> LateDecoder:
        return LateDecoder()


class LateDecoder:
    """Gives every letter one token late."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token: int) -> str:
        out, self.held = self.held, chr(ord("a") + token)
        return out

    def finish(self) -> str:
        return self.held


class ToyReader(CheckpointReader):
    """Knows the name ``toy``."""

    name = NAME

    def matches(self, source: str) -> bool:
        return source == NAME

    def read(self, source: str) -> Checkpoint:
        model = make()
        return Checkpoint(model.config, Weights.of(model), Letters(), None, source)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SEQMIX_NO_CACHE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with registry.register_local("checkpoints", NAME, ToyReader):
        yield


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """The same model without a tokenizer."""
    save_model(make(), tmp_path / "saved")
    return str(tmp_path / "saved")


def continuation(prompt: str, count: int, **options: Any) -> str:
    tokens = generate(make(), Letters().encode(prompt), max_new_tokens=count, **options)
    return Letters().decode(list(tokens))


def test_info(capsys: Capture) -> None:
    assert invoke(["info", NAME, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["parameters"] == make().parameter_count()
    assert card["layers with a state"] == 1
    assert card["context"] == 24
    assert card["branches"] == "1 attention"
    assert card["state bytes per token"] == 2 * 6 * 4 + 8
    assert invoke(["info", NAME, "--rope", "yarn:2"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"context\s*│\s*48\b", table)
    assert "yarn" in table


def test_info_of_a_configuration(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text(make().config.to_json(), encoding="utf-8")
    assert invoke(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(path)


def test_run_prints_the_whole_continuation(capsys: Capture) -> None:
    assert invoke(["run", NAME, "--prompt", "hello", "--max-tokens", "6"]) == 0
    captured = capsys.readouterr()
    assert captured.out == continuation("hello", 6) + "\n"
    assert re.fullmatch(r"6 tokens in \d+\.\d\d s, prompt of 5 tokens included\n", captured.err), (
        captured.err
    )


def test_run_with_a_seed_and_a_chat(capsys: Capture) -> None:
    sampling = ["--temperature", "1.5", "--seed", "7", "--max-tokens", "9"]
    assert invoke(["run", NAME, "--prompt", "abc", "--chat", *sampling]) == 0
    expected = continuation("zabcz", 9, temperature=1.5, seed=7)
    assert capsys.readouterr().out == expected + "\n"


@pytest.mark.filterwarnings("always")
def test_run_past_the_context_warns_and_rope_extends_it(capsys: Capture) -> None:
    arguments = ["run", NAME, "--prompt", "abc", "--max-tokens", "30"]
    assert invoke(arguments) == 0
    assert "warning: prompt and new tokens may reach 33 tokens" in capsys.readouterr().err
    assert invoke([*arguments, "--rope", "yarn:2"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_run_needs_a_tokenizer(capsys: Capture, saved: str) -> None:
    assert invoke(["run", saved, "--prompt", "abc"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_ir_captured_and_legalized(capsys: Capture, tmp_path: Path) -> None:
    assert invoke(["ir", NAME]) == 0
    captured = capsys.readouterr().out
    assert "attention(" in captured
    assert "loc(" not in captured
    parse(captured, registry.op_table())
    file = tmp_path / "legal.txt"
    legalized = ["ir", NAME, "--stage", "legalized", "-b", "reference", "--locs", "-o", str(file)]
    assert invoke(legalized) == 0
    assert capsys.readouterr().out == ""
    text = file.read_text(encoding="utf-8")
    assert "loc(" in text
    assert parse(text, registry.op_table()).name == NAME


def test_explain(capsys: Capture) -> None:
    assert invoke(["explain", NAME, "-b", "reference", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "reference"
    assert found["native"]["attention"] == 1
    assert found["decomposed"] == {}
    assert found["impossible"] == []


def test_explain_what_is_decomposed_and_what_is_impossible(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supports(self: Any, op: Any, target: str) -> str | None:
        return f"no [{op.name}] here" if op.name in ("attention", "reshape") else None

    backend = registry.get("backends", "reference")
    monkeypatch.setattr(backend, "supports", supports)
    assert invoke(["explain", NAME, "-b", "reference", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["decomposed"]["attention"].endswith(": no [attention] here")
    assert {lost["op"] for lost in found["impossible"]} == {"reshape"}
    assert invoke(["explain", NAME, "-b", "reference"]) == 1
    table = capsys.readouterr().out
    assert "no [attention] here" in table
    assert "impossible" in table


def test_export_and_replace(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    export = ["export", NAME, str(out), "-b", "reference"]
    assert invoke(export) == 0
    written = sorted(out.iterdir())
    assert "seqmix.json" in [path.name for path in written]
    assert all(str(path) in capsys.readouterr().out for path in written[:1])
    assert list(out.parent.iterdir()) == [out]
    assert invoke(export) == 2
    assert "exists; choose another folder, or replace it with --force" in capsys.readouterr().err
    (out / "left_over").write_text("", encoding="utf-8")
    assert invoke([*export, "--force"]) == 0
    assert sorted(out.iterdir()) == written


def test_export_never_removes_what_is_no_export(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    assert invoke(["export", NAME, str(tmp_path), "-b", "reference", "--force"]) == 2
    assert "exists and is no earlier export" in capsys.readouterr().err
    assert (tmp_path / "letter.txt").read_text(encoding="utf-8") == "dear"


def test_a_failed_export_leaves_nothing(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmix.cli.export.compile_model", lambda *_: FailingExecutable())
    assert invoke(["export", NAME, str(tmp_path / "out"), "-b", "reference"]) == 2
    assert f"error: {tmp_path / 'out'}: cannot be written: disk full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class FailingExecutable:
    """An executable that cannot be written."""

    def save(self, directory: Path) -> None:
        (directory / "half").write_text("", encoding="utf-8")
        raise OSError("disk full")


def test_check_a_model(capsys: Capture, saved: str) -> None:
    assert invoke(["check", saved, "-b", "reference", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {row["where"].split()[0] for row in report["rows"]} == {"torch", "reference"}
    assert {row["check"] for row in report["rows"]} == {"step", "prefill", "prefill with state"}


def test_check_tells_when_a_model_means_something_else(
    capsys: Capture, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = load_model(saved)
    wrong.norm.weight.data += 0.5
    monkeypatch.setattr("seqmix.cli.check._compile_all", lambda *_: ({}, ["a note [here]"]))
    monkeypatch.setattr("seqmix.cli.check.load_model", lambda _: wrong)
    real = registry.get("backends", "reference").compile

    def compile(self: Any, program: Any, target: str, options: Any) -> Any:
        right = load_model(saved)
        weights = {n: (lambda n=n: Weights.of(right).numpy(n)) for n in program.weights.names()}
        moved = type(program)(program.module, Weights(weights), program.config)
        return real(self, moved, target, options)

    monkeypatch.setattr(registry.get("backends", "reference"), "compile", compile)
    assert invoke(["check", saved]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "a note [here]" in out


def test_check_a_mixer(capsys: Capture) -> None:
    assert invoke(["check", "mlp", "-b", "reference", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"splitting", "padding", "causality", "gradients"} <= {
        r["check"] for r in report["rows"]
    }


def test_a_backend_that_cannot_is_a_note_or_an_error(
    capsys: Capture, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: Any, name: str) -> Any:
        raise BackendError(f"{name} is on holiday")

    monkeypatch.setattr("seqmix.cli.check.compile_model", refuse)
    assert invoke(["check", saved, "-b", "reference"]) == 2
    assert "reference is on holiday" in capsys.readouterr().err
    assert invoke(["check", saved, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "backend 'reference' was not checked: reference is on holiday" in notes
