"""The book and the curve of the xLSTM example."""

from __future__ import annotations

import hashlib
import importlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

# Scripts that import their neighbours, as a script does.
sys.path.insert(0, str(EXAMPLES))
book: Any = importlib.import_module("book")
curve: Any = importlib.import_module("curve")
sys.path.remove(str(EXAMPLES))


def test_the_tail_is_held_out_and_at_most_a_tenth() -> None:
    assert book.split_book(b"abcdefghij" * 10, 3) == ((b"abcdefghij" * 10)[:-3], b"hij")
    assert [len(part) for part in book.split_book(bytes(200), 50)] == [180, 20]


def test_a_text_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(book.BookError, match=r"nowhere\.txt: cannot be read: No such file"):
        book.read_text(tmp_path / "nowhere.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(book.BookError, match="is empty"):
        book.read_text(tmp_path / "empty.txt")
    (tmp_path / "lines.txt").write_bytes(b"a\r\nb\n")
    assert book.read_text(tmp_path / "lines.txt") == b"a\nb\n"


def make_archive(path: Path, **plays: bytes | str) -> Path:
    """An archive of plays; a string makes a link to that path instead of a file."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in plays.items():
            member = tarfile.TarInfo(f"{book.FOLDER}/{name}_gut.txt")
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def test_the_plays_are_joined_in_order(tmp_path: Path) -> None:
    plays = {name: f"\n{name}\r\n.\n".encode() for name in reversed(book.PLAYS)}
    text = book.plays_of(make_archive(tmp_path / "a.tar.gz", **plays))
    assert text.startswith(b"hamlet\n.\n\n\n\njulius_caesar\n.")
    assert text.endswith(b"romeo_and_juliet\n.\n")


def test_an_archive_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with pytest.raises(book.BookError, match="has no file"):
        book.plays_of(make_archive(path, lear=b"x"))
    with pytest.raises(book.BookError, match="is no plain file"):
        book.plays_of(make_archive(path, hamlet="/etc/passwd"))
    with pytest.raises(book.BookError, match="is no plain file"):
        book.plays_of(make_archive(path, hamlet=bytes(book.LARGEST_PLAY + 1)))
    path.write_bytes(b"no archive")
    with pytest.raises(book.BookError, match="is no usable archive"):
        book.plays_of(path)


def test_offline_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: Any) -> Any:
        assert "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no route\n")

    monkeypatch.setattr(book.subprocess, "run", refuse)
    with pytest.raises(book.BookError, match=r"ERROR: no route; go online once, or .* --text FILE"):
        book.find_book(tmp_path)


def test_a_kept_book_is_used_only_when_it_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays = {name: name.encode() for name in book.PLAYS}
    archive = make_archive(tmp_path / "a.tar.gz", **plays)
    text = book.plays_of(archive)
    fetched: list[Path] = []

    def fetch(folder: Path) -> Path:
        fetched.append(folder)
        return archive

    monkeypatch.setattr(book, "BOOK_SHA256", hashlib.sha256(text).hexdigest())
    monkeypatch.setattr(book, "_download", fetch)
    assert book.find_book(tmp_path / "kept") == text
    assert book.find_book(tmp_path / "kept") == text
    assert len(fetched) == 1
    (tmp_path / "kept" / book.BOOK).write_bytes(b"changed")
    assert book.find_book(tmp_path / "kept") == text
    assert len(fetched) == 2
    monkeypatch.setattr(book, "BOOK_SHA256", "0" * 64)
    with pytest.raises(book.BookError, match="expected sha256 0000"):
        book.find_book(tmp_path / "kept")


ROWS = [
    {"tokens": 1000, curve.TRAIN: 8.0, curve.HELD_OUT: None},
    {"tokens": 2000, curve.TRAIN: 4.123456789, curve.HELD_OUT: 5.0},
]


def test_the_curve_as_csv(tmp_path: Path) -> None:
    curve.write_csv(ROWS, tmp_path / "new" / "curve.csv")
    lines = (tmp_path / "new" / "curve.csv").read_text().splitlines()
    assert lines == [f"tokens,{curve.TRAIN},{curve.HELD_OUT}", "1000,8,", "2000,4.12346,5"]
    assert curve.series(ROWS, curve.HELD_OUT) == ([2.0], [5.0])


def test_without_matplotlib_there_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "seqmix[plots]" in curve.draw_curve(ROWS, tmp_path / "a.png", "a title")
    assert not list(tmp_path.iterdir())


def test_with_matplotlib_there_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert curve.draw_curve(ROWS, tmp_path / "a.png", "a title") is None
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
