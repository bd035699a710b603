"""seqmix eval: evaluations that plugins bring, each a command of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seqmix import registry
from seqmix.cli import invoke

Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("plugins")
def test_an_evaluation_is_a_command_with_help(capsys: Capture) -> None:
    assert invoke(["eval", "count", "abc", "--times", "2"]) == 0
    assert capsys.readouterr().out == "6\n"
    assert invoke(["eval", "count", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: seqmix eval count [OPTIONS]")
    for part in ("Count the letters of a name.", "What to count.", "--times"):
        assert part in shown


@pytest.mark.usefixtures("plugins")
def test_its_exit_status_is_that_of_the_program() -> None:
    assert invoke(["eval", "count", ""]) == 1


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("arguments", [["eval"], ["eval", "--help"], ["eval", "-h"]])
def test_the_names_are_listed_with_their_origin(capsys: Capture, arguments: list[str]) -> None:
    assert invoke(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["count", "of", "Throwaway.Good", "1.2.0"] in [line.split() for line in lines]


def test_listing_them_imports_none() -> None:
    code = (
        "import sys; from seqmix.cli import invoke; invoke(['eval', '--help']); "
        "print(sorted({'torch', 'seqmix_recall', 'seqmix_longcontext'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cuont"], "no evaluation 'cuont'; did you mean 'count'?"),
        (["count"], "; see seqmix eval count --help"),
        (["count", "m", "--times", "0"], "Invalid value for '--times'"),
        (["no_function"], "should be a function that typer makes a command of, found 5"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    capsys: Capture, arguments: list[str], expected: str
) -> None:
    assert invoke(["eval", *arguments]) == 2
    captured = capsys.readouterr().err
    assert expected in captured
    assert captured.count("\n") == 1


def test_one_registered_by_hand(capsys: Capture) -> None:
    def twice(number: int) -> None:
        print(2 * number)

    with registry.register_local("evaluations", "twice", twice):
        assert invoke(["eval", "twice", "4"]) == 0
        assert capsys.readouterr().out == "8\n"
        assert invoke(["eval"]) == 0
        assert "registered by hand" in capsys.readouterr().out


def test_parameters_that_make_no_command(capsys: Capture) -> None:
    def rate(model: int | bytes) -> None:
        raise AssertionError("is never called")

    with registry.register_local("evaluations", "rate", rate):
        assert invoke(["eval", "rate", "m"]) == 2
    assert "its parameters make no command" in capsys.readouterr().err
