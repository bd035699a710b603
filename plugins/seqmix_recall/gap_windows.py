"""Windows of a token file: rows that are scored on their own, every target in exactly one.

Sizes: T tokens, N windows, S targets of a window; a window has S + 1 tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix.errors import ConfigError
from seqmix.training.tokens import TokenFile

__all__ = ["Windows", "cut_windows", "is_token_file", "read_tokens"]

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

TOKEN_FILES = (".bin", ".npy")
HIGHEST_ID = 2**31 - 1
CHUNK = 1 << 24


@dataclass(frozen=True)
class Windows:
    """Where windows of at most ``length`` targets begin in ``tokens [T]``, and what they belong to.

    Window i has the inputs ``starts[i]`` onwards and ``sizes[i]`` targets, each the token that
    follows. ``units [N]`` number what is independent of each other, for standard errors:
    documents, or the windows themselves.
    """

    tokens: NDArray[Any]
    length: int
    starts: Ints
    sizes: Ints
    units: Ints

    def __len__(self) -> int:
        """The number of windows N."""
        return len(self.starts)

    def take(self, first: int, last: int) -> tuple[Ints, Bools]:
        """Tokens ``[n, S + 1]`` and which targets count ``[n, S]``, of some windows in a row.

        What is behind the end of a short window is 0.
        """
        starts, sizes = self.starts[first:last, None], self.sizes[first:last, None]
        places = np.arange(int(sizes.max(initial=0)) + 1)
        inside = places <= sizes
        read = self.tokens[np.where(inside, starts + places, 0)].astype(np.int64)
        return np.where(inside, read, 0), inside[:, 1:]

    def limited(self, count: int | None) -> Windows:
        """The first windows only."""
        if count is None or count >= len(self):
            return self
        some = slice(count)
        return Windows(
            self.tokens, self.length, self.starts[some], self.sizes[some], self.units[some]
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the tokens that are read and of the way they are cut."""
        digest = hashlib.sha256(f"{self.length}".encode())
        for array in (self.starts, self.sizes):
            digest.update(array.astype("<i8").tobytes())
        end = int((self.starts + self.sizes).max(initial=-1)) + 1
        for start in range(0, end, CHUNK):
            digest.update(self.tokens[start : min(end, start + CHUNK)].astype("<i4").tobytes())
        return digest.hexdigest()


def cut_windows(tokens: NDArray[Any], length: int, separator: int | None = None) -> Windows:
    """Windows one behind the other, the last ones shorter; every token but the first is a target.

    With a ``separator``, the id behind every document, no window reaches beyond a document, whose
    own first token is no target, and documents are the units. ConfigError where nothing is left.
    """
    if length < 1:
        raise ConfigError(f"length should be at least 1, found {length}")
    begins, ends = _documents(tokens, separator)
    targets = (ends - begins - 1).clip(min=0)
    per_document = -(-targets // length)
    units = np.repeat(np.arange(len(begins)), per_document)
    if not len(units):
        raise ConfigError(f"{len(tokens)} tokens give nothing to predict; give more text")
    first = np.repeat(np.cumsum(per_document) - per_document, per_document)
    offsets = (np.arange(len(units)) - first) * length
    sizes = np.minimum(length, targets[units] - offsets)
    starts = begins[units] + offsets
    if separator is None:
        return Windows(tokens, length, starts, sizes, np.arange(len(sizes)))
    return Windows(tokens, length, starts, sizes, np.unique(units, return_inverse=True)[1])


def _documents(tokens: NDArray[Any], separator: int | None) -> tuple[Ints, Ints]:
    """Where documents begin and end; a separator belongs to the document before it."""
    if separator is None:
        return np.zeros(1, np.int64), np.array([len(tokens)], np.int64)
    found = [
        start + np.flatnonzero(tokens[start : start + CHUNK] == separator)
        for start in range(0, len(tokens), CHUNK)
    ]
    ends = np.concatenate([*found, [len(tokens)]]).astype(np.int64)
    ends[:-1] += 1
    return np.concatenate([[0], ends[:-1]]), ends


def is_token_file(path: Path) -> bool:
    """Whether a path is one of tokens, by its name."""
    return path.suffix in TOKEN_FILES


def read_tokens(path: Path) -> NDArray[Any]:
    """Mapped token ids ``[T]``: what a training left (``.bin``), or an integer ``.npy``."""
    tokens: NDArray[Any]
    if path.suffix == ".bin":
        tokens = TokenFile(path).tokens
    else:
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(f"{path}: is no token file: {error}") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ConfigError(
            f"{path}: tokens should be one row of integers, found {getattr(tokens, 'dtype', '?')} "
            f"{list(getattr(tokens, 'shape', []))}"
        )
    for start in range(0, len(tokens), CHUNK):
        piece = tokens[start : start + CHUNK]
        if int(piece.min()) < 0 or int(piece.max()) > HIGHEST_ID:
            raise ConfigError(f"{path}: token ids should be in 0..{HIGHEST_ID}")
    return tokens
