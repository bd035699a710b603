"""What is shown while something takes long: how far it is, where somebody looks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from seqmix import progress as module
from seqmix.progress import counted, progress


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=80, color_system=None)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    return text


def test_what_is_counted_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    with progress("compiling"):
        counted("kernels built", 3, 19)
    assert "compiling: kernels built 3 of 19" in text.getvalue()


def test_what_nobody_can_count_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    with progress("compiling"):
        counted("linking", 0, 0)
    assert "compiling: linking" in text.getvalue()
    assert " of " not in text.getvalue()


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=False)
    with progress("compiling"):
        counted("kernels built", 3, 19)
    assert text.getvalue() == ""


def test_counting_outside_goes_nowhere() -> None:
    with progress("first"):
        pass
    counted("kernels built", 3, 19)
