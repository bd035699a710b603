"""How often bigrams occur in training tokens: sorted codes with counts, in bounded memory.

Sizes: T tokens, U distinct bigrams, C tokens of a chunk.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix.errors import ConfigError
from seqmix.whole_file import whole_file

__all__ = ["BigramCounts", "bigram_codes", "count_bigrams"]

Ints: TypeAlias = NDArray[np.int64]

CHUNK = 1 << 22
"""Tokens that are sorted at a time: about a hundred megabytes of work space."""


@dataclass(frozen=True)
class BigramCounts:
    """Occurrences of bigrams among ``tokens`` training tokens: 16 bytes for each that is known.

    ``codes [U]`` are sorted and distinct, ``counts [U]`` belong to them. Where ``complete`` a
    bigram that is not listed does not occur; otherwise some were counted, the others are unknown.
    """

    codes: Ints
    counts: Ints
    tokens: int
    complete: bool = True

    def of(self, codes: NDArray[Any]) -> Ints:
        """The counts of bigrams; ConfigError for one that was not counted."""
        if not len(self.codes):
            found, places = np.zeros(codes.shape, np.bool_), np.zeros(codes.shape, np.int64)
        else:
            places = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
            found = self.codes[places] == codes
        if not self.complete and not bool(found.all()):
            raise ConfigError(
                "bigram counts: some bigrams of the text were not counted; these counts were made "
                "for another text, count the training tokens again"
            )
        if not len(self.codes):
            return places
        return np.where(found, self.counts[places], 0)

    def save(self, path: Path) -> None:
        """Write an ``.npz``; it appears whole or not at all."""
        about = np.array([self.tokens, self.complete], np.int64)
        with whole_file(path) as file:
            np.savez(file, codes=self.codes, counts=self.counts, about=about)

    @staticmethod
    def load(path: Path) -> BigramCounts:
        """Read what :meth:`save` wrote; ConfigError when it is something else."""
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                codes, counts, about = file["codes"], file["counts"], file["about"]
            tokens, complete = (int(number) for number in about)
            ordered = codes.ndim == 1 and bool((codes[1:] > codes[:-1]).all())
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path}: is no file of bigram counts: {error}") from error
        typed = codes.dtype == counts.dtype == np.int64
        if not ordered or not typed or codes.shape != counts.shape:
            raise ConfigError(
                f"{path}: bigram counts should be two int64 arrays of one size with sorted codes; "
                "count the training tokens again"
            )
        return BigramCounts(codes, counts, tokens, bool(complete))


def bigram_codes(previous: NDArray[Any], current: NDArray[Any]) -> Ints:
    """One int64 for each pair of ids below 2**31."""
    codes: Ints = (previous.astype(np.int64) << 32) | current.astype(np.int64)
    return codes


def count_bigrams(
    sources: Iterable[NDArray[Any]],
    *,
    only: Ints | None = None,
    chunk: int = CHUNK,
    watch: Callable[[int], None] | None = None,
) -> BigramCounts:
    """Count the bigrams within each array of tokens, which may be a mapped file of any size.

    ``only`` (sorted, distinct codes) counts those alone, so that memory follows the text that is
    evaluated and not the corpus. Otherwise it follows the distinct bigrams of the corpus.
    ``watch`` gets the number of tokens that were read, chunk by chunk.
    """
    runs = _Runs() if only is None else None
    counted = np.zeros(0 if only is None else len(only), np.int64)
    total = 0
    for tokens in sources:
        total += len(tokens)
        for start in range(0, len(tokens), chunk):
            piece = np.asarray(tokens[start : start + chunk + 1])
            codes = bigram_codes(piece[:-1], piece[1:])
            if runs is not None and len(codes):
                runs.add(*np.unique(codes, return_counts=True))
            elif only is not None and len(only) and len(codes):
                counted += _counted(codes, only)
            if watch is not None:
                watch(min(chunk, len(tokens) - start))
    if runs is not None:
        return BigramCounts(*runs.merged(), total)
    return BigramCounts(np.zeros(0, np.int64) if only is None else only, counted, total, False)


def _counted(codes: Ints, only: Ints) -> Ints:
    places = np.searchsorted(only, codes).clip(max=len(only) - 1)
    known = places[only[places] == codes]
    return np.bincount(known, minlength=len(only))


class _Runs:
    """Sorted runs of falling size; two of like size become one, so every code moves log T times."""

    def __init__(self) -> None:
        self._runs: list[tuple[Ints, Ints]] = []

    def add(self, codes: Ints, counts: Ints) -> None:
        self._runs.append((codes, counts.astype(np.int64)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            self._join_last()

    def merged(self) -> tuple[Ints, Ints]:
        while len(self._runs) > 1:
            self._join_last()
        return self._runs[0] if self._runs else (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def _join_last(self) -> None:
        (some, counts), (others, more) = self._runs[-2:]
        codes = np.concatenate([some, others])
        # Two sorted runs: a stable sort only merges them.
        order = np.argsort(codes, kind="stable")
        codes, counts = codes[order], np.concatenate([counts, more])[order]
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        self._runs[-2:] = [(codes[starts], np.add.reduceat(counts, starts))]
