"""Where two models differ: log probabilities summed over slices of the targets.

Sizes: N windows, S targets, U units (documents or windows), K slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix.errors import ConfigError
from seqmix_recall.gap_counts import BigramCounts
from seqmix_recall.gap_hits import THRESHOLD, Hits, find_hits, row_codes
from seqmix_recall.gap_windows import Windows

__all__ = ["HITS", "OTHERS", "OVERALL", "Tally", "slice_names", "tally_slices", "wanted_codes"]

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

OVERALL, HITS, OTHERS = "overall", "AR hits", "other tokens"
FREQUENT = "repeats, frequent in training"
DISTANCES = (1, 4, 16, 64, 256, 1024, 4096)
"""Buckets of the distance back to the earlier occurrence begin here."""
COUNTS = (0, 1, 10, 100, 1000)
"""Buckets of the training count begin here, as far as the threshold."""
WINDOWS_AT_ONCE = 64


@dataclass(frozen=True)
class Tally:
    """Sums over targets: ``names [K]``, ``sums [U, K, 3]``, places of hits.

    The three sums are the number of targets and the log probabilities of model and reference.
    ``hits_at [S]`` and ``targets_at [S]`` count hits and targets at every place of a window;
    ``hit_gaps [N]`` are sums of reference minus model over the hits of a window.
    """

    names: tuple[str, ...]
    sums: Floats
    hits_at: NDArray[np.int64]
    targets_at: NDArray[np.int64]
    hit_gaps: Floats


def tally_slices(
    windows: Windows,
    model: NDArray[Any],
    reference: NDArray[Any],
    counts: BigramCounts,
    threshold: int = THRESHOLD,
) -> Tally:
    """Sum the log probabilities ``model [N, S]`` and ``reference [N, S]`` by slice and unit.

    Windows are read a few at a time, so that files of any size can be summed. ConfigError for
    values that are missing.
    """
    names = slice_names(windows.length, threshold)
    sums = np.zeros((int(windows.units.max()) + 1, len(names), 3))
    hits_at, targets_at = np.zeros((2, windows.length), np.int64)
    hit_gaps = np.zeros(len(windows))
    for first, last in _pieces(len(windows)):
        tokens, valid = windows.take(first, last)
        hits = find_hits(tokens, valid, counts, threshold)
        size = valid.shape[1]
        values = [_finite(scores[first:last, :size], valid, first) for scores in (model, reference)]
        units = windows.units[first:last]
        for k, mask in enumerate(_masks(hits, valid, threshold, windows.length)):
            # All slices at once would take K times the memory.
            row_sums = np.stack([mask.sum(1), *((v * mask).sum(1) for v in values)], axis=1)
            np.add.at(sums[:, k], units, row_sums)
        hits_at[:size] += hits.is_hit.sum(0)
        targets_at[:size] += valid.sum(0)
        hit_gaps[first:last] = ((values[1] - values[0]) * hits.is_hit).sum(1)
    return Tally(names, sums, hits_at, targets_at, hit_gaps)


def slice_names(length: int, threshold: int) -> tuple[str, ...]:
    """What the slices are called; the first three are overall, hits and the rest."""
    distances = [_span("AR hits, distance", *b) for b in _buckets(DISTANCES, length)]
    counts = [_span("AR hits, training count", *b) for b in _buckets(COUNTS, threshold)]
    return (OVERALL, HITS, OTHERS, FREQUENT, *distances, *counts)


def wanted_codes(windows: Windows, watch: Callable[[int], None] | None = None) -> NDArray[np.int64]:
    """The distinct bigrams of all windows, sorted: those whose training counts matter."""
    found: NDArray[np.int64] = np.zeros(0, np.int64)
    waiting: list[NDArray[np.int64]] = []
    for first, last in _pieces(len(windows), 16 * WINDOWS_AT_ONCE):
        tokens, valid = windows.take(first, last)
        waiting.append(np.unique(row_codes(tokens, valid)[valid]))
        if sum(map(len, waiting)) > len(found):
            found, waiting = np.unique(np.concatenate([found, *waiting])), []
        if watch is not None:
            watch(last - first)
    return np.unique(np.concatenate([found, *waiting]))


def _masks(hits: Hits, valid: Bools, threshold: int, length: int) -> Iterator[Bools]:
    """The slices in the order of their names."""
    yield valid
    yield hits.is_hit
    yield valid & ~hits.is_hit
    yield hits.repeated & ~hits.is_hit
    for low, high in _buckets(DISTANCES, length):
        yield hits.is_hit & (hits.distances >= low) & (hits.distances < high)
    for low, high in _buckets(COUNTS, threshold):
        yield hits.is_hit & (hits.counts >= low) & (hits.counts < high)


def _buckets(starts: tuple[int, ...], end: int) -> list[tuple[int, int]]:
    """Half-open ranges between the starts that are below ``end``, which ends the last one."""
    below = [start for start in starts if start < end]
    return list(zip(below, [*below[1:], end], strict=True))


def _span(what: str, low: int, high: int) -> str:
    return f"{what} {low}" if high == low + 1 else f"{what} {low}-{high - 1}"


def _finite(values: NDArray[Any], valid: Bools, first: int) -> Floats:
    """Values with 0 where nothing counts; ConfigError where one that counts is missing."""
    wide = np.asarray(values, np.float64)
    missing = ~np.isfinite(wide) & valid
    if missing.any():
        row, place = (int(i) for i in np.argwhere(missing)[0])
        raise ConfigError(
            f"log probabilities: window {first + row} has {wide[row, place]} at target {place}; "
            "score the windows to their end first"
        )
    return np.where(valid, wide, 0.0)


def _pieces(count: int, size: int = WINDOWS_AT_ONCE) -> Iterator[tuple[int, int]]:
    for first in range(0, count, size):
        yield first, min(first + size, count)
