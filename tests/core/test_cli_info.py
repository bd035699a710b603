"""seqmix info: the cost of a model by kind of branch, and of a mixer by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.core import tiny

from seqmix.cli import invoke
from seqmix.model import Model, flatten_states, initial_states

Capture = pytest.CaptureFixture[str]
REPLACE: list[Any] = [{"by": tiny.WINDOW, "count": 1}]
MIXER = ["info", "attention", "--option", "heads=2", "--option", "head_dim=6"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    block = {"repeat": 2, "steps": [tiny.ATTENTION, tiny.MLP], "replace": REPLACE}
    file = tmp_path / "toy.json"
    file.write_text(tiny.config(blocks=[block]).to_json(), encoding="utf-8")
    return str(file)


def card(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert invoke([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_model_by_kind_and_in_total(capsys: Capture, path: str) -> None:
    found = card(capsys, "info", path, "--seq-len", "9", "--batch", "3")
    assert (found["batch"], found["sequence length"]) == (3, 9)
    assert [(row["kind"], row["branches"]) for row in found["kinds"]] == [
        ("attention", 2),
        ("mlp", 2),
        ("embedding and head", 1),
    ]
    for key in found["kinds"][0]:
        if key not in ("kind", "branches"):
            assert sum(row[key] for row in found["kinds"]) == found[key], key


def test_a_model_that_fits_into_no_memory_is_counted(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_text(tiny.config(width=2**20, vocab_size=2**31 - 1).to_json(), encoding="utf-8")
    assert card(capsys, "info", str(file))["parameters"] > 2**51
    assert invoke(["explain", str(file), "--backend", "reference"]) == 2
    assert "make it smaller ('seqmix info' counts without memory)" in capsys.readouterr().err


def test_the_numbers_are_those_of_the_real_model(capsys: Capture, path: str) -> None:
    found = card(capsys, "info", path, "--seq-len", "9", "--batch", "3")
    block = {"repeat": 2, "steps": [tiny.ATTENTION, tiny.MLP], "replace": REPLACE}
    model = tiny.model(blocks=[block])
    _, after = model(*tiny.tokens(3, 9))

    def size(states: dict[str, Any]) -> int:
        return sum(t.numel() * t.element_size() for t in states.values())

    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["state bytes at the end"] == size(flatten_states(model, after))
    assert found["state bytes at the start"] == size(initial_states(model, 3))
    assert found["flops of a forward"] == model.flops(3, 9)
    assert found["flops per token at decode"] == model.step_flops(1, 9)
    more = card(capsys, "info", path, "--seq-len", "10", "--batch", "3")
    grown = more["state bytes at the end"] - found["state bytes at the end"]
    assert grown == found["state bytes per token"]


def test_the_context_is_the_default_length(capsys: Capture, path: str) -> None:
    found = card(capsys, "info", path)
    assert (found["batch"], found["sequence length"]) == (1, 64)
    assert found == card(capsys, "info", path, "--seq-len", "64")


def test_the_tables(capsys: Capture, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke(["info", path]) == 0
    out = capsys.readouterr().out
    assert "embedding and head" in out
    assert "flops per token at decode" in out
    assert invoke([*MIXER, "--width", "10"]) == 0
    assert "heads=2, head_dim=6" in capsys.readouterr().out


def test_no_number_is_cut(capsys: Capture, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flops = card(capsys, "info", path)["kinds"][0]["flops of a forward"]
    monkeypatch.setenv("COLUMNS", "40")
    assert invoke(["info", path]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert f"{flops:,}" in out


def test_toml(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "toy.toml"
    text = 'vocab_size = 5\nwidth = 4\ncontext_length = 8\nblocks = [{steps = [{kind = "mlp", '
    file.write_text(text + "hidden = 3}]}]\n", encoding="utf-8")
    found = card(capsys, "info", str(file))
    assert found["flops of a forward"] == 2 * 8 * (2 * 4 * 3 + 4 * 5)
    assert found["state bytes at the end"] == 0


def test_a_mixer_by_name(capsys: Capture) -> None:
    found = card(capsys, *MIXER, "--width", "10", "--seq-len", "5", "--batch", "2")
    assert found["parameters"] == 4 * 10 * 12
    assert found["flops of a forward"] == 2 * 2 * (5 * 4 * 10 * 12 + 2 * 15 * 12)
    assert found["flops per token at decode"] == 2 * (4 * 10 * 12 + 2 * 6 * 12)
    assert found["state bytes at the end"] == 2 * 5 * (2 * 12 * 4 + 8)
    assert card(capsys, *MIXER)["width"] == 768


def test_options_are_json_or_text_and_may_be_nested(capsys: Capture) -> None:
    more = ["--option", "bias=true", "--option", "window=4"]
    assert card(capsys, *MIXER, *more)["options"] == "heads=2, head_dim=6, bias=true, window=4"
    relu = card(capsys, "info", "mlp", "--option", "hidden=3", "--option", "activation=relu")
    assert relu["options"] == 'hidden=3, activation="relu"'
    assert invoke(["info", "mlp", "--option", "hidden=3", "--option", "hidden=4"]) == 2
    assert "'hidden' has a value already" in capsys.readouterr().err
    assert invoke(["info", "mlp", "--option", "a.b=1", "--option", "hidden=3"]) == 2
    assert "unknown key 'a'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention"], "mixer 'attention': 'heads' is missing; .* given as --option KEY=VALUE"),
        (["attention", "--option", "heads"], "option 'heads' should read KEY=VALUE, such as"),
        (["mlp", "--option", "=3"], "option '=3' should read KEY=VALUE"),
        (["mlp", "--option", "a=3", "--option", "a.b=3"], "'a' has a value already"),
        (["mlp", "--option", "hiden=3"], "unknown key 'hiden'; did you mean 'hidden'"),
        (["mlp", "--rope", "yarn:2"], "--rope is for models, but 'mlp' is a mixer"),
        (["atention"], "no mixer 'atention'; did you mean 'attention'.*; and no model: "),
        (["PATH", "--width", "8"], "--width and --option are for a mixer by name"),
        (["PATH", "--option", "heads=8"], "which has them in its configuration; leave them out"),
    ],
)
def test_refused(capsys: Capture, path: str, arguments: list[str], message: str) -> None:
    given = [path if argument == "PATH" else argument for argument in arguments]
    assert invoke(["info", *given]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_a_window_stops_growing() -> None:
    model = Model(tiny.config([tiny.WINDOW]))
    assert not any(spec.grows for spec in model.state_specs()[0].values())
    assert model.step_flops(1, 50) == model.step_flops(1, 500)
