"""Recall tasks as the repository of the Zoology paper draws them, bit for bit.

Its randomness is numpy's legacy generator, one row at a time: all keys, all values, then all
places. What it leaves to chance, its random filler, is seeded here and spares the keys of a row;
more than one pass, which fails there, repeats the pairs in their order.

Sizes: N rows, K pairs, S tokens.
"""

from __future__ import annotations

import numpy as np

from seqmix.training.rows import IGNORED, ArrayRows
from seqmix_recall.draws import Ints, fill, power_law
from seqmix_recall.settings import (
    ForgettingSettings,
    MQARSettings,
    PairSettings,
    key_range,
    value_range,
)

__all__ = ["zoology_forgetting", "zoology_mqar"]

FILLED_AT_ONCE = 1024
"""Rows; the filler needs a table of all tokens for each."""


def zoology_mqar(settings: MQARSettings, rows: int, seed: int) -> ArrayRows:
    """The rows of ``multiquery_ar`` in HazyResearch/zoology, and of any number of passes."""
    random = np.random.RandomState(seed)
    keys, values = _pairs(settings, random, rows)
    context = np.zeros((rows, settings.context_length()), np.int64)
    context[:, 0::2] = np.tile(keys, (1, settings.passes))
    context[:, 1::2] = np.tile(values, (1, settings.passes))
    return _asked(settings, random, context, keys, values, seed)


def zoology_forgetting(settings: ForgettingSettings, rows: int, seed: int) -> ArrayRows:
    """The rows of ``forgetting_mqar`` in HazyResearch/zoology.

    An update differs from the first value of the key at its own number, not from that of the key
    it is given to: now and then nothing is updated. The ``fast`` generator has no such rows.
    """
    random = np.random.RandomState(seed)
    keys, values = _pairs(settings, random, rows)
    choices = np.arange(*_ends(value_range(settings.vocab_size)))
    new = np.array(
        [
            [random.choice(choices[choices != old]) for old in row[: settings.updates]]
            for row in values
        ]
    )
    changed = np.stack(
        [random.choice(settings.pairs, settings.updates, replace=False) for _ in range(rows)]
    )
    context = np.zeros((rows, settings.context_length()), np.int64)
    context[:, 0::2] = np.hstack([keys, np.take_along_axis(keys, changed, axis=1)])
    context[:, 1::2] = np.hstack([values, new])
    np.put_along_axis(values, changed, new, axis=1)
    return _asked(settings, random, context, keys, values, seed)


def _pairs(s: PairSettings, random: np.random.RandomState, rows: int) -> tuple[Ints, Ints]:
    """``[N, K]`` keys and values; all keys are drawn before all values."""
    keys, values = (
        np.stack([random.choice(choices, s.pairs, replace=False) for _ in range(rows)])
        for choices in (
            np.arange(*_ends(key_range(s.vocab_size))),
            np.arange(*_ends(value_range(s.vocab_size))),
        )
    )
    return keys, values


def _asked(
    s: PairSettings,
    random: np.random.RandomState,
    context: Ints,
    keys: Ints,
    values: Ints,
    seed: int,
) -> ArrayRows:
    """Context, queries and filler as rows."""
    rows, weights = len(keys), power_law(s.slots(), s.power)
    slots = np.stack(
        [random.choice(s.slots(), s.pairs, replace=False, p=weights) for _ in range(rows)]
    )
    places = context.shape[1] + 2 * slots
    tokens = np.zeros((rows, s.length), np.int64)
    targets = np.full((rows, s.length), IGNORED, np.int64)
    tokens[:, : context.shape[1]] = context
    np.put_along_axis(tokens, places, keys, axis=1)
    np.put_along_axis(targets, places, values, axis=1)
    if s.filler == "random":
        _fill(s, tokens, keys, seed)
    return ArrayRows(tokens.astype(np.int32), targets.astype(np.int32))


def _fill(s: PairSettings, tokens: Ints, keys: Ints, seed: int) -> None:
    random = np.random.default_rng(seed)
    for start in range(0, len(tokens), FILLED_AT_ONCE):
        part = slice(start, start + FILLED_AT_ONCE)
        fill(random, tokens[part], keys[part], s.vocab_size, tokens[part] == 0)


def _ends(values: range) -> tuple[int, int]:
    return values.start, values.stop
