"""The command line as a whole: help, errors, warnings, and the lists of plugins and backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from seqmix import cli, registry
from seqmix.backend import Availability
from seqmix.cli import invoke
from seqmix.errors import CheckpointError, IRError, PluginError

Capture = pytest.CaptureFixture[str]
BAD = "throwaway-broken,throwaway-second,throwaway-future,throwaway-wrong,throwaway-hooks"


def raising(error: BaseException) -> Any:
    """A stand-in for the app of typer."""

    def app(*_: Any, **__: Any) -> None:
        raise error

    return app


def test_help_and_version(capsys: Capture) -> None:
    assert invoke([]) == 0
    nothing = capsys.readouterr().out
    assert invoke(["--help"]) == 0
    assert capsys.readouterr().out.rstrip() == nothing.rstrip()
    for command in ("plugins", "backends", "info", "run", "export", "check", "explain", "ir"):
        assert f"\n  {command} " in nothing
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"seqmix {version('seqmix')}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bogus"], "No such command 'bogus'; see seqmix --help"),
        (["run", "m"], "Missing option '--prompt'; see seqmix run --help"),
        (["run", "m", "--prompt", "p", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
        (["ir"], "Missing argument 'MODEL'; see seqmix ir --help"),
        (["ir", "m", "--stage", "capturd"], "no stage 'capturd'; did you mean 'captured'?"),
        (["ir", "m", "-o", "no/such/place"], "there is no folder"),
        (["explain", "m", "-b", "reverence"], "no backend 'reverence'; did you mean 'reference'?"),
        (["export", "m", "o", "-b", "reverence"], "no backend 'reverence'"),
        (["run", "m", "--prompt", "p", "-b", "reverence"], "no backend 'reverence'"),
        (["check", "mlp", "-b", "reverence"], "no backend 'reverence'"),
        (["info", "no/such/model"], "'no/such/model' is no checkpoint"),
        (["check", "atention"], "no mixer 'atention'; did you mean 'attention' or 'retention'?"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    capsys: Capture, arguments: list[str], expected: str
) -> None:
    assert invoke(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("error", [IRError("a\nb"), CheckpointError("a\nb"), OSError("a\nb")])
def test_the_rest_of_an_error_is_in_the_traceback(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(cli, "app", raising(error))
    assert invoke(["info", "m"]) == 2
    assert capsys.readouterr().err == "error: a (--traceback shows more)\n"
    with pytest.raises(type(error)):
        invoke(["info", "--traceback", "m"])


def test_errors_in_the_program_itself_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        invoke(["info", "m"])


def test_an_interrupt_is_no_traceback(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmix.cli.listing.list_backends", raising(KeyboardInterrupt()))
    assert invoke(["backends"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_main_exits_with_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["seqmix", "--version"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0


@pytest.mark.usefixtures("plugins")
@pytest.mark.filterwarnings("always")
def test_warnings_are_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", f"{BAD},thrwaway")
    assert invoke(["plugins"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: SEQMIX_BLOCK_PLUGINS lists 'thrwaway'")
    assert captured.err.count("\n") == 1
    assert "good_task" in captured.out


def test_plugins_of_a_fresh_process(installed: Path) -> None:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SEQMIX_")},
        "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")]),
        "SEQMIX_BLOCK_PLUGINS": "throwaway-future",
    }
    result = subprocess.run(
        [sys.executable, "-m", "seqmix", "plugins", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    rows = {
        (row["kind"], row["name"], row["distribution"]): row for row in json.loads(result.stdout)
    }
    good = rows["mixers", "gain", "Throwaway.Good"]
    assert good == {
        "kind": "mixers", "name": "gain", "distribution": "Throwaway.Good", "version": "1.2.0",
        "value": "throwaway_good.mixer:Gain", "status": "ok", "reason": "",
    }  # fmt: skip
    broken = rows["tasks", "broken_task", "throwaway-broken"]
    assert broken["status"] == "failed"
    assert "a_module_that_nobody_has" in broken["reason"]
    for name in ("first", "second"):
        assert rows["tasks", "claimed_twice", f"throwaway-{name}"]["status"] == "failed"
    assert rows["tasks", "past", "throwaway-future"]["reason"].endswith("lists 'throwaway-future'")
    assert rows["hooks", "misspelt", "throwaway-hooks"]["status"] == "failed"
    assert rows["mixers", "attention", "seqmix"]["status"] == "ok"


@pytest.mark.usefixtures("plugins")
def test_the_table_of_plugins(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke(["plugins"]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "good_task" in line)
    assert "Throwaway.Good 1.2.0" in row
    assert "ok" in row
    assert any("broken_task" in line and "failed" in line for line in lines)


class Absent:
    """A backend that is not here."""

    def probe(self) -> Availability:
        return Availability((), "needs a [quantum] device")


def test_backends(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.get

    def get(kind: str, name: str) -> Any:
        if name == "torch":
            raise PluginError("torn apart")
        return real(kind, name)

    monkeypatch.setattr(registry, "get", get)
    monkeypatch.setenv("COLUMNS", "120")
    with registry.register_local("backends", "absent", Absent):
        assert invoke(["backends", "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert invoke(["backends"]) == 0
        table = capsys.readouterr().out
    assert rows["reference"]["devices"] == ["cpu"]
    assert rows["absent"] == {"name": "absent", "devices": [], "reason": "needs a [quantum] device"}
    assert rows["torch"]["reason"] == "torn apart"
    assert "needs a [quantum] device" in table
