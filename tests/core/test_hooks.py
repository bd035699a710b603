"""Hooks are isolated one by one: what one plugin does wrong, the others do not feel."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from seqmix import hooks
from seqmix.backend import Executable
from seqmix.errors import PluginError
from seqmix_ir.graph import Module

MODULE = Module("empty")
EXECUTABLE = cast(Executable, object())
RAISING = "raising (throwaway-hooks 0.2)"


@pytest.fixture(autouse=True)
def _plugins(plugins: Path) -> None:
    """Every test here sees the samples."""


def block(monkeypatch: pytest.MonkeyPatch, *entries: str) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", ",".join(entries))
    hooks.clear()


def quietly(call: Any, *arguments: Any) -> tuple[Any, list[str]]:
    """The result of a call, and the warnings on the way to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments)
    return result, [str(warning.message) for warning in caught]


def reasons() -> dict[str, str]:
    return {s.contribution.name: s.reason for s in hooks.hook_statuses() if s.state == "failed"}


def test_what_cannot_be_loaded_is_listed_with_its_reason() -> None:
    found = reasons()
    assert set(found) == {"broken_hooks", "misspelt", "unknown_argument", "future"}
    assert "hook 'broken_hooks' of throwaway-broken 0.3.1" in found["broken_hooks"]
    assert "ZeroDivisionError" in found["broken_hooks"]
    assert "seqmix_rewrite" in found["misspelt"]
    assert "the hooks are seqmix_choose_backend, seqmix_compiled" in found["misspelt"]
    assert "target" in found["unknown_argument"]
    assert "update throwaway-hooks, or block it" in found["unknown_argument"]
    assert "plugin interface 7.0" in found["future"]


def test_good_hooks_run_beside_bad_ones() -> None:
    rules, said = quietly(hooks.rewrites, "reference")
    assert rules == [print]
    broken = ("hook 'broken_hooks'", "hook 'misspelt'", "hook 'unknown_argument'", "hook 'future'")
    for start in broken:
        assert sum(line.startswith(start) for line in said) == 1, start
    failed = f"hook seqmix_rewrites of {RAISING} failed: LookupError: no rules for reference"
    assert failed in said
    assert any("rules should be callable, found 'a rule'" in line for line in said)
    assert len(said) == 6


def test_failures_to_load_are_told_once() -> None:
    quietly(hooks.rewrites, "torch")
    rules, said = quietly(hooks.rewrites, "torch")
    assert rules == []
    assert all("failed:" in line for line in said)
    assert len(said) == 2


def test_a_hook_that_raised_is_in_the_list() -> None:
    assert "raising" not in reasons()
    quietly(hooks.compiled, MODULE, EXECUTABLE)
    assert reasons()["raising"] == f"hook seqmix_compiled of {RAISING} failed: OSError: disk full"


def test_everyone_hears_of_a_compilation() -> None:
    quietly(hooks.compiled, MODULE, EXECUTABLE)
    assert importlib.import_module("throwaway_good.hooks").calls == [EXECUTABLE]


def test_a_choice_that_is_no_candidate_is_passed_over() -> None:
    candidates = ["reference", "torch"]
    choice, said = quietly(hooks.choose_backend, MODULE, candidates)
    assert choice == ("torch", "good_hooks (Throwaway.Good 1.2.0)")
    assert candidates == ["reference", "torch"]
    assert any("chose 'elsewhere', not one of reference, torch" in line for line in said)


def test_nobody_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    block(monkeypatch, "throwaway-hooks", "good_hooks", "throwaway-broken")
    assert hooks.choose_backend(MODULE, ["torch"]) is None


def test_blocked_hooks_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    block(monkeypatch, "throwaway-hooks", "broken_hooks")
    assert hooks.rewrites("reference") == [print]
    states = {s.contribution.name: s.state for s in hooks.hook_statuses()}
    assert states["broken_hooks"] == states["raising"] == "blocked"
    assert states["good_hooks"] == "ok"


def test_strict_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="hook 'broken_hooks' of throwaway-broken") as caught:
        hooks.rewrites("reference")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    block(monkeypatch, "throwaway-broken", "misspelt", "unknown_argument", "future", "no_rules")
    with pytest.raises(PluginError, match="LookupError: no rules") as raised:
        hooks.rewrites("reference")
    assert isinstance(raised.value.__cause__, LookupError)


def test_origins_import_nothing() -> None:
    assert ("throwaway-broken", "broken_hooks") in hooks.hook_origins()
