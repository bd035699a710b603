"""Text files as one memory-mapped file of tokens: documents in a row, a separator after each.

The file is made once and found again by what it was made from, so that a corpus larger than memory
can be trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from seqmix.checkpoint import Tokenizer
from seqmix.errors import ConfigError
from seqmix.reading import UnreadableError, read_json
from seqmix.whole_file import whole_file, write_whole

__all__ = ["TokenFile", "build_tokens", "documents", "made_from"]

FORMAT = 1
DTYPES = ("|u1", "<i4")
CHUNK = 1 << 20
"""Characters that are read at a time where a file has several documents."""


class TokenFile:
    """Tokens on disk, read as they are asked for; ``digest`` tells contents apart."""

    def __init__(self, path: Path) -> None:
        """Map what :func:`build_tokens` wrote; ConfigError when it is broken."""
        self.path = path
        try:
            about = _read_about(path)
            dtype = np.dtype(about["dtype"])
            # An empty file cannot be mapped.
            empty = path.stat().st_size == 0
            self.tokens: NDArray[Any] = np.empty(0, dtype) if empty else np.memmap(path, dtype, "r")
            self.digest: str = about["digest"]
            self.highest: int = about["highest"]
            whole = len(self.tokens) == about["tokens"]
        except (OSError, ValueError, UnreadableError) as error:
            raise ConfigError(f"{path}: is no token file: {error}; remove it") from error
        if not whole:
            raise ConfigError(
                f"{path}: should have {about['tokens']} tokens, found {len(self.tokens)}; remove it"
            )


def build_tokens(
    files: Sequence[Path],
    folder: Path,
    tokenizer: Tokenizer | None,
    name: str,
    separator: int | None,
    split: str | None,
) -> TokenFile:
    """The tokens of text files, made in ``folder`` or found there.

    Without a ``tokenizer`` tokens are the bytes themselves. ``name`` says which tokenizer it is.
    ``split`` is what separates the documents within a file; None makes each file one document.
    ``separator`` is the id behind every document, None for none. Raises ConfigError for files that
    cannot be read or are not UTF-8.
    """
    digest = made_from(files, [FORMAT, name, separator, split])
    path = folder / f"tokens-{digest[:16]}.bin"
    if path.is_file() and _about(path).is_file():
        return TokenFile(path)
    with whole_file(path) as out:
        about = _write(out, files, tokenizer, separator, split)
    # Last: tokens without it count as missing, and are made again.
    write_whole(_about(path), json.dumps(about))
    return TokenFile(path)


def made_from(files: Sequence[Path], options: list[Any]) -> str:
    """A digest of files and of JSON values; ConfigError for a file that cannot be read."""
    digest = hashlib.sha256(json.dumps(options).encode())
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
    return digest.hexdigest()


def documents(file: Path, split: str | None) -> Iterator[str]:
    """The documents of a file that are not empty, one after the other."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            pieces = [stream.read()] if split is None else _pieces(stream, split)
            yield from filter(None, pieces)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as UTF-8 text: {error}") from error


def _pieces(stream: TextIO, split: str) -> Iterator[str]:
    """Documents of a file that need not fit into memory as a whole."""
    rest = ""
    while read := stream.read(CHUNK):
        *whole, rest = (rest + read).split(split)
        yield from whole
    yield rest


def _write(
    out: BinaryIO,
    files: Sequence[Path],
    tokenizer: Tokenizer | None,
    separator: int | None,
    split: str | None,
) -> dict[str, Any]:
    """Write the tokens; int32 throughout, or bytes where all of them are."""
    end = [] if separator is None else [separator]
    dtype = np.dtype("u1" if tokenizer is None and (separator or 0) < 256 else "<i4")
    digest, count, highest = hashlib.sha256(), 0, -1
    for file in files:
        for document in documents(file, split):
            ids = document.encode() if tokenizer is None else tokenizer.encode(document)
            tokens = np.array([*ids, *end], dtype)
            out.write(tokens.tobytes())
            digest.update(tokens.tobytes())
            count += len(tokens)
            highest = max(highest, int(tokens.max(initial=0)))
    return {
        "dtype": dtype.str,
        "tokens": count,
        "highest": highest,
        "digest": digest.hexdigest(),
    }


def _read_about(path: Path) -> dict[str, Any]:
    """What is said of a token file; UnreadableError where it is not what is needed."""
    about = read_json(_about(path))
    for key, kind in (("dtype", str), ("digest", str), ("tokens", int), ("highest", int)):
        if not isinstance(about, dict) or not isinstance(about.get(key), kind):
            raise UnreadableError(f"{_about(path).name} names no '{key}'")
    if about["dtype"] not in DTYPES:
        raise UnreadableError(f"has the type {about['dtype'][:40]!r}, expected one of {DTYPES}")
    found: dict[str, Any] = about
    return found


def _about(path: Path) -> Path:
    return path.with_suffix(".json")
