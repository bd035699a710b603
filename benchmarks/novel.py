"""A real novel to measure long contexts on: Jane Austen's Persuasion, as plain text.

It comes out of Debian's package r-cran-janeaustenr (the text is in the public domain), fetched by
``apt-get download`` or given as a ``.deb`` file; R is not needed. Lines of a paragraph are joined.

    python benchmarks/novel.py [--deb FILE] [--out out/books/persuasion.txt]
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from seqmix.errors import SeqmixError

__all__ = ["NOVEL", "NovelError", "find_novel", "paragraphs", "read_lines"]

NOVEL = Path("out/books/persuasion.txt")
SHA256 = "63b41ca409cb5cc007c0d4c191d7fa046db4b023986d59f533ad7cb4bad35ff2"
PACKAGE = "r-cran-janeaustenr"
DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
TITLE = "Persuasion"
HEADER = b"X\n\x00\x00\x00\x03"
STRINGS, STRING = 16, 9
"""Types of items in R's serialization: a vector of strings, and one string."""
PATIENCE = 300


class NovelError(SeqmixError):
    """A novel that cannot be had; says what to do instead."""


def find_novel(path: Path = NOVEL, deb: Path | None = None) -> Path:
    """The file with the novel, made when it is not there; NovelError where that fails."""
    if path.is_file() and _sha256(path.read_bytes()) == SHA256:
        return path
    with tempfile.TemporaryDirectory() as folder:
        data = _unpacked(deb or _downloaded(Path(folder)), Path(folder))
        books = {lines[0]: lines for lines in _books(data.read_bytes())}
    if TITLE not in books:
        raise NovelError(f"{PACKAGE}: has no book '{TITLE}', found {', '.join(books)}; use --text")
    text = paragraphs(books[TITLE]).encode()
    if (found := _sha256(text)) != SHA256:
        raise NovelError(
            f"{PACKAGE}: the text of '{TITLE}' should have sha256 {SHA256}, found {found}; another "
            "edition gives other figures: to use one, name its file with --text"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text)
    part.replace(path)
    return path


def paragraphs(lines: list[str]) -> str:
    """The lines of a paragraph joined by spaces, an empty line between paragraphs."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return "\n\n".join(" ".join(part) for part in found if part)


def read_lines(item: bytes) -> list[str]:
    """A vector of strings as R serializes it (R Internals, section 1.8), in version 3, XDR."""
    if not item.startswith(HEADER):
        raise NovelError(f"{PACKAGE}: is not in R's format of version 3; name a text with --text")
    (skip,) = struct.unpack_from(">i", item, 14)
    place = 18 + skip
    kind, count = struct.unpack_from(">ii", item, place)
    if kind & 255 != STRINGS:
        raise NovelError(f"{PACKAGE}: expected a vector of strings, found type {kind & 255}")
    lines, place = [], place + 8
    for _ in range(count):
        kind, size = struct.unpack_from(">ii", item, place)
        if kind & 255 != STRING:
            raise NovelError(f"{PACKAGE}: expected a string, found type {kind & 255}")
        lines.append(item[place + 8 : place + 8 + max(size, 0)].decode())
        place += 8 + max(size, 0)
    return lines


def _books(data: bytes) -> Iterator[list[str]]:
    """Every vector of strings of an ``.rdb`` file: each a length in four bytes, and zlib data."""
    while data:
        stream = zlib.decompressobj()
        yield read_lines(stream.decompress(data[4:]))
        data = stream.unused_data


def _downloaded(folder: Path) -> Path:
    if shutil.which("apt-get") is None:
        raise NovelError(_unfetched("there is no apt-get here"))
    command = ["apt-get", "download", PACKAGE]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise NovelError(_unfetched(f"no answer for {PATIENCE} s")) from error
    found = sorted(folder.glob("*.deb"))
    if done.returncode or len(found) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
        raise NovelError(_unfetched(said[-1].strip()))
    return found[0]


def _unpacked(deb: Path, folder: Path) -> Path:
    """The file with all books, out of the package."""
    if not deb.is_file():
        raise NovelError(f"{deb}: there is no such file; fetch it with: apt-get download {PACKAGE}")
    if shutil.which("dpkg-deb") is None:
        raise NovelError(_unfetched("there is no dpkg-deb here"))
    done = subprocess.run(
        ["dpkg-deb", "-x", str(deb), str(folder / "x")], capture_output=True, text=True
    )
    data = folder / "x" / DATA
    if done.returncode or not data.is_file():
        raise NovelError(f"{deb}: has no {DATA}; expected the package {PACKAGE}: {done.stderr}")
    return data


def _unfetched(cause: str) -> str:
    return (
        f"the novel, from Debian's package {PACKAGE}, could not be fetched: {cause}; give the "
        "package with --deb FILE, or another long text with --text FILE"
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Write the novel, and say how long it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--deb", type=Path, help="the package, where it cannot be downloaded")
    parser.add_argument("--out", type=Path, default=NOVEL)
    args = parser.parse_args()
    try:
        path = find_novel(args.out, args.deb)
    except NovelError as error:
        sys.exit(f"error: {error}")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
