"""Figures of slices with their standard errors, and the share of the gap, out of a tally.

Sizes: U units (documents or windows), K slices, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix_recall.gap_share import GapShare, gap_share
from seqmix_recall.gap_slices import HITS, OVERALL, Tally

__all__ = ["Gap", "SliceFigures", "measure_gap"]

Floats: TypeAlias = NDArray[np.float64]

RESAMPLES = 1000
NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class SliceFigures:
    """One slice: mean log probabilities in nats per token; None where it is empty.

    ``difference`` is reference minus model, above 0 where the model is worse. ``contribution`` is
    the part of the whole gap that lies in the slice; parts of a partition add up to 1. Standard
    errors are None where fewer than two units have such tokens.
    """

    name: str
    tokens: int
    proportion: float
    model: float | None
    reference: float | None
    difference: float | None
    model_error: float | None
    reference_error: float | None
    difference_error: float | None
    contribution: float | None

    @property
    def model_perplexity(self) -> float | None:
        """``exp`` of the mean negative log probability."""
        return None if self.model is None else math.exp(-self.model)

    @property
    def reference_perplexity(self) -> float | None:
        """``exp`` of the mean negative log probability."""
        return None if self.reference is None else math.exp(-self.reference)


@dataclass(frozen=True)
class Gap:
    """All slices, and the share of the gap that the AR hits have, with its standard error."""

    slices: tuple[SliceFigures, ...]
    share: GapShare
    share_error: float | None
    units: int

    def slice(self, name: str) -> SliceFigures:
        """The slice of a name."""
        return next(one for one in self.slices if one.name == name)


def measure_gap(tally: Tally, seed: int = 0, resamples: int = RESAMPLES) -> Gap:
    """The figures of a tally; errors by a seeded bootstrap over its units.

    Units are drawn with replacement, as many as there are, and everything is computed anew from
    the same draw for all slices and both models (Efron 1979; paired, since both read one text).
    """
    totals = tally.sums.sum(0)
    whole = totals[tally.names.index(OVERALL)]
    samples = np.concatenate(list(_resampled(tally.sums, seed, resamples)))
    errors = _errors(samples, tally.sums)
    slices = tuple(
        _figures(name, totals[k], whole, errors[k]) for k, name in enumerate(tally.names)
    )
    places = tally.names.index(OVERALL), tally.names.index(HITS)
    share = _share(totals, *places)
    drawn = [_share(sample, *places).value for sample in samples]
    known = [value for value in drawn if value is not None]
    # An error of what is mostly undefined would say little.
    sound = share.value is not None and 2 * len(known) > len(drawn) and len(known) > 1
    error = float(np.std(known, ddof=1)) if sound and len(tally.sums) > 1 else None
    return Gap(slices, share, error, len(tally.sums))


def _resampled(sums: Floats, seed: int, resamples: int) -> Iterator[Floats]:
    """Totals ``[r, K, 3]`` of draws with replacement, some at a time."""
    units = len(sums)
    random = np.random.default_rng(seed)
    flat = sums.reshape(units, -1)
    at_once = max(1, NUMBERS_AT_ONCE // units)
    chances = np.full(units, 1 / units)
    yield np.zeros((0, *sums.shape[1:]))
    for start in range(0, resamples, at_once):
        weights = random.multinomial(units, chances, size=min(at_once, resamples - start))
        yield (weights @ flat).reshape(-1, *sums.shape[1:])


def _errors(samples: Floats, sums: Floats) -> list[tuple[float | None, float | None, float | None]]:
    """Standard errors of model, reference and difference by slice."""
    populated = (sums[..., 0] > 0).sum(0)
    found: list[tuple[float | None, float | None, float | None]] = []
    for k in range(sums.shape[1]):
        drawn = samples[:, k][samples[:, k, 0] > 0]
        if populated[k] < 2 or len(drawn) < 2:
            found.append((None, None, None))
            continue
        model, reference = drawn[:, 1] / drawn[:, 0], drawn[:, 2] / drawn[:, 0]
        both = (model, reference, reference - model)
        one, two, three = (float(np.std(values, ddof=1)) for values in both)
        found.append((one, two, three))
    return found


def _figures(
    name: str,
    totals: Floats,
    whole: Floats,
    errors: tuple[float | None, float | None, float | None],
) -> SliceFigures:
    tokens, model, reference = (float(total) for total in totals)
    proportion = tokens / float(whole[0])
    if not tokens:
        return SliceFigures(name, 0, 0.0, *(None,) * 7)
    gap = float(whole[2] - whole[1])
    return SliceFigures(
        name,
        int(tokens),
        proportion,
        model / tokens,
        reference / tokens,
        (reference - model) / tokens,
        *errors,
        (reference - model) / gap if gap else None,
    )


def _share(totals: Floats, overall: int, hits: int) -> GapShare:
    count, model, reference = (float(v) for v in totals[overall])
    hit_count, hit_model, hit_reference = (float(v) for v in totals[hits])
    per_hit = (hit_model / hit_count, hit_reference / hit_count) if hit_count else (math.nan,) * 2
    return gap_share(*per_hit, model / count, reference / count, hit_count / count)
