"""The compile cache: whole entries or none, repairs, two writers at once, and its limit."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqmix import cache, cache_room
from seqmix.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)
    monkeypatch.delenv("SEQMIX_CACHE_LIMIT", raising=False)
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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 20 * 10**9),
        ("0", None),
        ("0G", None),
        ("12345", 12345),
        ("500M", 500 * 10**6),
        ("10G", 10 * 10**9),
        ("10GB", 10 * 10**9),
        (" 1.5 k ", 1500),
        ("8Gi", 8 * 2**30),
        ("2TiB", 2 * 2**40),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, text: str, size: int | None) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", text)
    assert cache.limit() == size


@pytest.mark.parametrize("text", ["-1", "much", "10X", "G", "10 G 5", "1i", "nan", "1e9"])
def test_a_limit_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", text)
    with pytest.raises(ConfigError, match="SEQMIX_CACHE_LIMIT should be a number of bytes"):
        cache.fetch("k")


KILO = 1000


def store(key: str, size: int = KILO) -> None:
    """An entry whose one file and seal have about ``size`` bytes."""
    cache.store(key, lambda folder: bool((folder / "data").write_bytes(b"x" * size)) and None)


def age(home: Path, key: str, seconds: int) -> None:
    """Make the last use of an entry so many seconds older."""
    seal = home / "compiled" / key / cache.SEAL
    then = seal.stat().st_mtime - seconds
    os.utime(seal, (then, then))


def entries(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "compiled").iterdir())


def test_the_longest_unused_go_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "0")
    for number, key in enumerate("abcd"):
        store(key)
        age(home, key, 100 - number)
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "3.5K")
    store("e")
    assert entries(home) == ["c", "d", "e"]


def test_what_fits_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "10K")
    for key in "abcde":
        store(key)
    assert entries(home) == list("abcde")


def test_a_fetch_is_a_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    store("b")
    age(home, "a", 100)
    age(home, "b", 50)
    folder = cache.fetch("a")
    assert folder is not None
    cache_room.release(folder)
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "2.5K")
    store("c")
    assert entries(home) == ["a", "c"]


def test_the_new_entry_stays_even_alone_too_large(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "500")
    store("a")
    assert entries(home) == ["a"]
    store("b")
    assert entries(home) == ["b"]


def test_an_entry_in_use_is_never_pushed_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    folder = cache.fetch("a")
    assert folder is not None
    age(home, "a", 1000)
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "1")
    store("b")
    store("c")
    assert entries(home) == ["a", "c"]
    assert cache.fetch("a") == folder, "a second fetch holds it once"
    cache_room.release(folder)
    store("d")
    assert entries(home) == ["d"]


USER = """
import sys
from seqmix import cache
print(cache.fetch("a"), flush=True)
sys.stdin.read()
"""


def test_an_entry_that_another_process_uses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "1")
    user = subprocess.Popen(
        [sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        assert user.stdin is not None
        assert user.stdout.readline().strip() == str(home / "compiled" / "a")
        store("b")
        assert entries(home) == ["a", "b"]
        user.kill()
    store("c")
    assert entries(home) == ["c"], "a lock ends with its process, however that ends"


def test_an_entry_made_again_is_held_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    assert cache.fetch("a") is not None
    # As another process would, which knows nothing of this one.
    (home / "compiled" / "a").rename(home / "elsewhere")
    store("a")
    assert cache.fetch("a") is not None
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "1")
    store("b")
    assert entries(home) == ["a", "b"]


def test_damaged_and_left_over_folders_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    (home / "compiled" / "a" / cache.SEAL).unlink()
    for name, seconds in ((".writing-old", 48 * 3600), (".writing-new", 60)):
        folder = home / "compiled" / name
        folder.mkdir()
        then = folder.stat().st_mtime - seconds
        os.utime(folder, (then, then))
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "1")
    store("b")
    assert entries(home) == [".writing-new", "b"]


def crowd(worker: int) -> None:
    """Store many entries, and look at those of everyone."""
    for turn in range(25):
        store(f"{worker}-{turn}")
        for other in range(2):
            key = f"{other}-{turn}"
            if (folder := cache.fetch(key)) is not None:
                assert (folder / "data").read_bytes() == b"x" * KILO
                cache_room.release(folder)


def test_two_processes_that_push_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_LIMIT", "5.5K")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=crowd, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    store("last")
    kept = entries(home)
    assert "last" in kept
    assert 3 <= len(kept) <= 5, kept
    assert not [name for name in kept if name.startswith(".")]
    assert all(cache.fetch(key) is not None for key in kept)
