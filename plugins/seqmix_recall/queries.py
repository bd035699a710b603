"""The rows of recall tasks with a context of pairs and queries behind it.

Sizes: N rows of a block, K pairs, S tokens.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from seqmix.training.rows import ArrayRows
from seqmix_recall.draws import Ints, blockwise, distinct, fill, power_law, weighted_distinct
from seqmix_recall.settings import (
    CompositionalSettings,
    ForgettingSettings,
    MQARSettings,
    QuerySettings,
    key_range,
    value_range,
)
from seqmix_recall.zoology import zoology_forgetting, zoology_mqar

__all__ = ["compositional_rows", "forgetting_rows", "mqar_rows"]


def mqar_rows(settings: MQARSettings, rows: int, seed: int) -> ArrayRows:
    """Multi-query associative recall (Arora et al. 2023, definition 3.1 and appendix E).

    ``k0 v0 k1 v1 .. `` as often as there are passes, then every key once, each where a power law
    puts it; the target at a query is the value of its key, and nothing is asked elsewhere. The
    same seed gives the same bytes.
    """
    if settings.generator == "zoology" and rows:
        return zoology_mqar(settings, rows, seed)
    return blockwise(rows, settings.length, seed, partial(_mqar, settings))


def forgetting_rows(settings: ForgettingSettings, rows: int, seed: int) -> ArrayRows:
    """Recall where some keys get a second value, different from the first: the last one counts."""
    if settings.generator == "zoology":
        return zoology_forgetting(settings, rows, seed)
    return blockwise(rows, settings.length, seed, partial(_forgetting, settings))


def compositional_rows(settings: CompositionalSettings, rows: int, seed: int) -> ArrayRows:
    """Recall by keys of two parts, all combinations of a few first and second parts.

    The context is ``a b value`` in any order, a query ``a b``; the target stands at ``b``. First
    parts, second parts and values are a third of the vocabulary each.
    """
    return blockwise(rows, settings.length, seed, partial(_compositional, settings))


def _mqar(s: MQARSettings, random: np.random.Generator, tokens: Ints, targets: Ints) -> None:
    keys, values = _pairs(s, random, len(tokens))
    context = tokens[:, : s.context_length()]
    context[:, 0::2] = np.tile(keys, (1, s.passes))
    context[:, 1::2] = np.tile(values, (1, s.passes))
    _ask(s, random, tokens, targets, [keys], values)


def _forgetting(
    s: ForgettingSettings, random: np.random.Generator, tokens: Ints, targets: Ints
) -> None:
    keys, values = _pairs(s, random, len(tokens))
    changed = distinct(random, len(tokens), s.updates, s.pairs)
    start, choices = value_range(s.vocab_size).start, len(value_range(s.vocab_size))
    old = np.take_along_axis(values, changed, axis=1)
    # A step of 1 .. choices - 1 around the circle of values never ends where it began.
    new = start + (old - start + random.integers(1, choices, size=old.shape)) % choices
    context = tokens[:, : s.context_length()]
    context[:, 0::2] = np.hstack([keys, np.take_along_axis(keys, changed, axis=1)])
    context[:, 1::2] = np.hstack([values, new])
    np.put_along_axis(values, changed, new, axis=1)
    _ask(s, random, tokens, targets, [keys], values)


def _compositional(
    s: CompositionalSettings, random: np.random.Generator, tokens: Ints, targets: Ints
) -> None:
    rows, side, third = len(tokens), s.side(), s.vocab_size // 3
    first = 1 + distinct(random, rows, side, third - 1)
    second = third + distinct(random, rows, side, third)
    cells = distinct(random, rows, s.pairs, s.pairs)
    parts = [
        np.take_along_axis(first, cells // side, axis=1),
        np.take_along_axis(second, cells % side, axis=1),
    ]
    values = 2 * third + distinct(random, rows, s.pairs, s.vocab_size - 2 * third)
    context = tokens[:, : s.context_length()]
    context[:, 0::3], context[:, 1::3], context[:, 2::3] = *parts, values
    _ask(s, random, tokens, targets, parts, values)


def _pairs(s: QuerySettings, random: np.random.Generator, rows: int) -> tuple[Ints, Ints]:
    """Different keys and different values of every row, ``[N, K]`` each."""
    keys, values = key_range(s.vocab_size), value_range(s.vocab_size)
    return (
        keys.start + distinct(random, rows, s.pairs, len(keys)),
        values.start + distinct(random, rows, s.pairs, len(values)),
    )


def _ask(
    s: QuerySettings,
    random: np.random.Generator,
    tokens: Ints,
    targets: Ints,
    parts: list[Ints],
    values: Ints,
) -> None:
    """Put the queries, of one part or more, behind the context, and fill what is left."""
    slots = weighted_distinct(random, len(tokens), s.pairs, power_law(s.slots(), s.power))
    places = s.context_length() + slots * s.query_length()
    for offset, part in enumerate(parts):
        np.put_along_axis(tokens, places + offset, part, axis=1)
    np.put_along_axis(targets, places + len(parts) - 1, values, axis=1)
    if s.filler == "random":
        fill(random, tokens, np.hstack(parts), s.vocab_size, tokens == 0)
