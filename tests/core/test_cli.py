"""The command line: what it prints, its exit status, its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from seqmix.cli import main
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.errors import ConfigError
from seqmix.extend import extend


def tiny(**more: object) -> ModelConfig:
    steps: list[Kind | list[Kind]] = [
        Kind(kind="attention", heads=2, head_dim=8),
        Kind(kind="swiglu", hidden=24),
    ]
    values = {
        "name": "tiny",
        "vocab_size": 31,
        "width": 16,
        "context_length": 64,
        "head_dim": 8,
        "position": Kind(kind="rope", theta=500.0),
        "blocks": [BlockConfig(repeat=2, steps=steps)],
        **more,
    }
    return ModelConfig.model_validate(values)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(tiny().to_json(), encoding="utf-8")
    return path


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``seqmix`` with the arguments."""
    monkeypatch.setattr("sys.argv", ["seqmix", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
        raise SystemExit(0)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize("command", ["info", "explain", "ir", "export", "check"])
def test_each_command_on_a_configuration(
    command: str,
    config_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = [str(tmp_path / "out" / "folder")] if command == "export" else []
    more += ["--rope", "yarn:2"] if command != "check" else []
    status, out, err = run(monkeypatch, capsys, command, str(config_file), *more)
    assert status == 0, err
    expected = {
        "info": "128",
        "explain": "native",
        "ir": "attention(",
        "export": "model.onnx",
        "check": "prefill with state",
    }
    assert expected[command] in out.replace("\n", "")


def test_json_is_json(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["info", str(config_file)], ["explain", str(config_file)], ["backends"]):
        status, out, _ = run(monkeypatch, capsys, *command, "--json")
        assert status == 0
        json.loads(out)


def test_errors_are_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(monkeypatch, capsys, "info", str(tmp_path / "missing"))
    assert (status, out) == (2, "")
    assert err.strip().startswith("error: ")
    assert len(err.strip().splitlines()) == 1


def test_a_misspelt_stage_is_explained(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(monkeypatch, capsys, "ir", str(config_file), "--stage", "captred")
    assert status == 2
    assert "did you mean 'captured'" in err


def test_export_does_not_overwrite(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config_file.parent
    status, _, err = run(monkeypatch, capsys, "export", str(config_file), str(folder))
    assert status == 2
    assert "exists" in err
    assert config_file.exists()


def test_extend_keeps_and_fills_options() -> None:
    extended = extend(tiny(), "yarn:2")
    assert extended.context_length == 128
    assert extended.position is not None
    assert extended.position.kind == "yarn"
    assert extended.position.options == {
        "theta": 500.0,
        "factor": 2.0,
        "original_context_length": 64,
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("yarn", "KIND:FACTOR"),
        ("yarn:x", "KIND:FACTOR"),
        ("yarn:0.5", "at least 1"),
        ("rope:2", "takes no factor"),
    ],
)
def test_extend_refuses(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        extend(tiny(), spec)
    with pytest.raises(ConfigError, match="no position encoding"):
        extend(tiny(position=None), spec)
    with pytest.raises(ConfigError, match="extended already"):
        extend(extend(tiny(), "yarn:2"), "yarn:2")


def test_run_needs_a_tokenizer(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    status, _, err = run(monkeypatch, capsys, "run", str(config_file), "--prompt", "x")
    assert status == 2
    assert "tokenizer" in err
