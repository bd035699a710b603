"""Entries of the compile cache and of what is remembered that someone else has put there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqmix import cache, choose

KEY = "k" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)
    return tmp_path


def entry() -> Path:
    cache.store(KEY, lambda folder: (folder / "a").write_text("1") and None)
    return cache.directory() / "compiled" / KEY


def seal_is(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / cache.SEAL).write_text(content)


def pipe(folder: Path) -> None:
    (folder / cache.SEAL).unlink()
    os.mkfifo(folder / cache.SEAL)


def directory(folder: Path) -> None:
    (folder / cache.SEAL).unlink()
    (folder / cache.SEAL).mkdir()


def link(folder: Path) -> None:
    (folder / "a").unlink()
    (folder.parent / "a").write_text("1")
    (folder / "a").symlink_to(folder.parent / "a")


@pytest.mark.parametrize(
    "damage",
    [seal_is("[" * 100_000), seal_is("[]"), seal_is("9" * 5000), pipe, directory, link],
)
def test_a_damaged_entry_is_no_entry_and_goes(damage: Callable[[Path], object]) -> None:
    folder = entry()
    damage(folder)
    assert cache.fetch(KEY) is None
    assert not folder.exists()


def test_a_link_to_an_entry_is_none() -> None:
    folder = entry()
    folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")
    assert cache.fetch(KEY) is None
    assert (folder.parent.parent / "elsewhere" / "a").exists()


def test_a_pipe_is_not_remembered(home: Path) -> None:
    (home / "digest").mkdir()
    os.mkfifo(home / "digest" / cache.key_of("text"))
    assert cache.remember("digest", "text", lambda: "made") == "made"


def test_names_of_files_may_be_any_bytes() -> None:
    assert len(cache.key_of(os.fsdecode(b"\xff/model"))) == 64


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "3", "{}", "[]", '["other"]', '["a", 1]', '[["a"]]', '{"a": 1}']
)
def test_a_choice_that_makes_no_sense_is_not_kept(text: str) -> None:
    found: dict[str, Any] = {"a": object()}
    assert choose._kept(text, found) is None
    assert choose._kept(json.dumps(["a", "why"]), found) == ["a", "why"]
