"""``seqmix run``: its sampling options, and several prompts at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.test_cli_model import NAME, Letters, ToyReader, make

from seqmix import registry
from seqmix.cli import invoke
from seqmix.generate import generate_all

Capture = pytest.CaptureFixture[str]

OPTIONS: dict[str, Any] = {
    "temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3,
    "seed": 7,
}  # fmt: skip
FLAGS = [
    part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", str(value))
]


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SEQMIX_NO_CACHE", "1")
    with registry.register_local("checkpoints", NAME, ToyReader):
        yield


def continuations(prompts: list[str], **options: Any) -> list[str]:
    ids = [Letters().encode(prompt) for prompt in prompts]
    rows = generate_all(make(), ids, max_new_tokens=9, **options)
    return [Letters().decode(row) for row in rows]


def test_every_option_counts(capsys: Capture) -> None:
    run = ["run", NAME, "--prompt", "abc", "--max-tokens", "9"]
    assert invoke([*run, *FLAGS]) == 0
    assert capsys.readouterr().out.splitlines() == continuations(["abc"], **OPTIONS)


def test_several_prompts_are_a_batch(capsys: Capture) -> None:
    prompts = ["hello", "a", "xyz"]
    given = [part for prompt in prompts for part in ("--prompt", prompt)]
    assert invoke(["run", NAME, *given, "--max-tokens", "9", *FLAGS]) == 0
    captured = capsys.readouterr()
    shown = [
        f"==> {prompt} <==\n{text}\n"
        for prompt, text in zip(prompts, continuations(prompts, **OPTIONS), strict=True)
    ]
    assert captured.out == "\n".join(shown)
    assert captured.err.startswith("27 tokens in ")
    assert captured.err.endswith(", 3 prompts of 9 tokens included\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top-p", "0"], "top_p should be more than 0"),
        (["--min-p", "1.5"], "min_p should be between"),
        (["--repetition-penalty", "0"], "repetition_penalty should be"),
        (["--top-k", "-1"], "--top-k"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_a_bad_option_is_told_before_anything_is_loaded(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.setattr("seqmix.cli.run.load_checkpoint", lambda *_: pytest.fail("was loaded"))
    assert invoke(["run", NAME, "--prompt", "abc", *flags]) == 2
    assert message in capsys.readouterr().err
