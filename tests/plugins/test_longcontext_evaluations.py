"""The commands, on a saved model and real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.plugins import longcontext_cases as cases

from seqmix.cli import invoke

pytest.importorskip("tokenizers")
pytest.importorskip("matplotlib")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(cases.save(tmp_path / "model"))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(cases.TEXT * 3, encoding="utf-8")
    return str(path)


def run(*arguments: Any) -> int:
    return invoke(["eval", *map(str, arguments)])


def test_perplexity(model: str, text: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    options = ["--rope", "none,yarn:2", "--lengths", "20,40", "--windows", "2,1", "--text", text]
    assert run("perplexity", model, *options, "--out", out) == 0
    assert {p.name for p in out.iterdir()} == {
        "perplexity.csv", "documents.csv", "perplexity.png", "losses",
    }  # fmt: skip
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["method", "20", "40"]
    assert [line.split()[0] for line in lines] == ["none", "yarn:2"]
    assert run("perplexity", model, *options, "--out", out, "--json", "--no-plot") == 0
    rows = json.loads(capsys.readouterr().out)
    assert float(lines[0].split()[1]) == pytest.approx(rows[0]["perplexity"], rel=1e-5)
    assert [row["documents"] for row in rows] == [2, 1, 2, 1]


def test_sliding_perplexity(model: str, text: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--mode", "sliding", "--stride", 8, "--lengths", "16,32", "--tokens", 60]
    assert run(
        "perplexity", model, "--text", text, *options, "--out", tmp_path, "--json", "--no-plot"
    ) == 0  # fmt: skip
    rows = json.loads(capsys.readouterr().out)
    assert [row["targets"] for row in rows] == [59, 59]


def test_passkey(model: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--lengths", "300,320", "--depths", "0,1", "--rope", "none,yarn:16"]
    assert run("passkey", model, *options, "--out", tmp_path / "out", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    assert (tmp_path / "out" / "passkey.png").is_file()
    # A model that was never trained finds nothing.
    assert {row["accuracy"] for row in rows} == {0.0}


@pytest.mark.full
def test_temperature(model: str, text: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--rope", "yarn:2", "--values", "0.9,1,1.1", "--length", 40, "--segments", 2]
    assert run("temperature", model, "--text", text, *options, "--out", tmp_path) == 0
    assert "ln(s) + 1" in capsys.readouterr().out
    assert (tmp_path / "temperature.png").is_file()
    assert run("temperature", model, "--text", text, *options, "--out", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["best"][0]["scale"] == 2.0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--rope", "yarm:2"], "did you mean 'yarn'"),
        (["--rope", "yarn"], "'yarn' should read KIND:FACTOR"),
        (["--lengths", "20,4000"], "has 273 tokens, 4000 are needed"),
        (["--lengths", "20,many"], "--lengths should be whole numbers"),
        (["--windows", "1,2,3"], "3 numbers of windows for 2 lengths"),
        (["--mode", "both", "--lengths", "20,40"], "single or sliding, found 'both'"),
        (["--bos"], "names no first token"),
        (["--dtype", "f31"], "f31"),
        (["--backend", "onnxruntim"], "onnxruntim"),
        (["--device", "gpu"], "'gpu' is no torch device"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: list, expected: str, model: str, text: str, tmp_path: Path, capsys: Any
) -> None:
    given = ["--text", text, "--out", tmp_path, "--lengths", "20,40", "--no-plot", *options]
    assert run("perplexity", model, *given) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1


def test_a_model_without_a_tokenizer(text: str, tmp_path: Path, capsys: Any) -> None:
    folder = cases.save(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    assert run("perplexity", folder, "--text", text, "--out", tmp_path) == 2
    assert "has no tokenizer, so it cannot read text" in capsys.readouterr().err


def test_compiled_models_are_read_too(model: str, text: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--lengths", "20", "--text", text, "--json", "--no-plot"]
    figures = []
    for backend in ("torch", "reference"):
        assert run("perplexity", model, *options, "-b", backend, "--out", tmp_path / backend) == 0
        figures.append(json.loads(capsys.readouterr().out)[0]["perplexity"])
    assert figures[0] == pytest.approx(figures[1], rel=1e-6)


def test_the_commands_are_light_to_import() -> None:
    heavy = "{'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    code = f"import sys, seqmix_longcontext.evaluations; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
