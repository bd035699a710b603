"""The compile cache: whole entries or none, repairs, and two writers at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from seqmix import cache


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "weights").write_bytes(b"0123456789")
    (folder / "seqmix.json").write_text("{}", encoding="utf-8")


def test_store_and_fetch() -> None:
    assert cache.fetch("k") is None
    cache.store("k", write)
    found = cache.fetch("k")
    assert found is not None
    assert (found / "deep" / "weights").read_bytes() == b"0123456789"
    cache.remove("k")
    assert cache.fetch("k") is None


@pytest.mark.parametrize("damage", ["shorter", "flipped", "gone", "extra", "unsealed"])
def test_damage_is_seen_and_removed(home: Path, damage: str) -> None:
    cache.store("k", write)
    entry = home / "compiled" / "k"
    weights = entry / "deep" / "weights"
    if damage == "shorter":
        weights.write_bytes(b"012345678")
    elif damage == "flipped":
        weights.write_bytes(b"0123456780")
    elif damage == "gone":
        weights.unlink()
    elif damage == "extra":
        (entry / "other").write_text("x", encoding="utf-8")
    else:
        (entry / cache.SEAL).unlink()
    assert cache.fetch("k") is None
    assert not entry.exists()
    cache.store("k", write)
    assert cache.fetch("k") is not None


def test_a_failed_write_leaves_nothing(home: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.store("k", fail)
    assert cache.fetch("k") is None
    assert list((home / "compiled").iterdir()) == []


def test_the_first_writer_wins(home: Path) -> None:
    def slow(folder: Path) -> None:
        (folder / "slow").write_text("", encoding="utf-8")
        cache.store("k", write)

    cache.store("k", slow)
    found = cache.fetch("k")
    assert found is not None
    assert not (found / "slow").exists()
    assert [p.name for p in (home / "compiled").iterdir()] == ["k"]


def test_a_place_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(blocked))
    cache.store("k", write)
    assert cache.fetch("k") is None
    assert cache.remember("digest", "text", lambda: "value") == "value"


def test_writers_in_many_processes(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=cache.store, args=("k", write)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert cache.fetch("k") is not None
    assert [p.name for p in (home / "compiled").iterdir()] == ["k"]


def test_clear() -> None:
    cache.store("k", write)
    cache.remember("digest", "text", lambda: "old")
    cache.clear()
    assert cache.fetch("k") is None
    assert cache.remember("digest", "text", lambda: "new") == "new"
    cache.clear()
    cache.clear()


def test_remember(home: Path) -> None:
    assert cache.remember("digest", "a", lambda: "one") == "one"
    assert cache.remember("digest", "a", lambda: "two") == "one"
    assert cache.remember("digest", "b", lambda: "two") == "two"
    for path in (home / "digest").iterdir():
        path.write_text("damaged", encoding="utf-8")
    assert cache.remember("digest", "a", lambda: "three") == "three"


def test_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.enabled()
    monkeypatch.setenv("SEQMIX_NO_CACHE", "1")
    assert not cache.enabled()
    assert cache.remember("digest", "a", lambda: "one") == "one"
    assert cache.remember("digest", "a", lambda: "two") == "two"
    monkeypatch.setenv("SEQMIX_NO_CACHE", "0")
    assert cache.enabled()


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEQMIX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "seqmix"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "seqmix"


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert cache.key_of("ab", "c") != cache.key_of("a", "bc") != cache.key_of("a", "b", "c")
    assert cache.key_of("ab", "c") == cache.key_of("ab", "c")
