"""Associative recall hits: tokens that a repeated, rare bigram would let a model recall.

Sizes: N rows, S targets of a row; a row has S + 1 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix_recall.gap_counts import BigramCounts, bigram_codes

__all__ = ["THRESHOLD", "Hits", "earlier_places", "find_hits", "row_codes"]

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

THRESHOLD = 1250
"""Training occurrences from which on a bigram counts as memorized (Zoology, appendix C.1)."""


@dataclass(frozen=True)
class Hits:
    """What is known of the targets of some rows, ``[N, S]`` each.

    ``earlier`` is the place of the latest earlier occurrence of the target's bigram in its row,
    counted like the targets, -1 for none; ``counts`` are its training occurrences.
    """

    is_hit: Bools
    earlier: Ints
    counts: Ints

    @property
    def repeated(self) -> Bools:
        """Where the bigram occurred before, whatever its training count."""
        return self.earlier >= 0

    @property
    def distances(self) -> Ints:
        """Tokens back to the earlier occurrence; 0 where there is none."""
        return np.where(self.repeated, np.arange(self.earlier.shape[1]) - self.earlier, 0)


def find_hits(
    tokens: NDArray[Any], valid: Bools, counts: BigramCounts, threshold: int = THRESHOLD
) -> Hits:
    """The AR hits of rows ``tokens [N, S + 1]`` whose targets count where ``valid [N, S]``.

    Token x_t is a hit when the bigram (x_{t-1}, x_t) occurred earlier in its row, and fewer than
    ``threshold`` times in training (Zoology, section 3 and appendix C.1).
    """
    codes = row_codes(tokens, valid)
    earlier = earlier_places(codes)
    seen = np.zeros(codes.shape, np.int64)
    seen[valid] = counts.of(codes[valid])
    return Hits((earlier >= 0) & (seen < threshold), earlier, seen)


def row_codes(tokens: NDArray[Any], valid: Bools) -> Ints:
    """The codes of the bigrams ``[N, S]``; where not valid a negative one that never repeats."""
    codes = bigram_codes(tokens[:, :-1], tokens[:, 1:])
    return np.where(valid, codes, -1 - np.arange(codes.shape[1]))


def earlier_places(codes: Ints) -> Ints:
    """The latest earlier place of the same code in the same row, -1 for none; ``[N, S]``."""
    order = np.argsort(codes, axis=1, kind="stable")
    ordered = np.take_along_axis(codes, order, axis=1)
    before = np.full(codes.shape, -1, np.int64)
    # Equal codes stand together, in the order of their places.
    before[:, 1:] = np.where(ordered[:, 1:] == ordered[:, :-1], order[:, :-1], -1)
    found = np.empty_like(before)
    np.put_along_axis(found, order, before, axis=1)
    return found
