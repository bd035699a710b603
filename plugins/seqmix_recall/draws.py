"""Random draws for many rows at once, in blocks of bounded size.

Sizes: N rows of a block, K draws per row, M things to draw from, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix.training.rows import IGNORED, ArrayRows

__all__ = ["Block", "blockwise", "distinct", "fill", "power_law", "weighted_distinct"]

Ints: TypeAlias = NDArray[np.int64]
Block: TypeAlias = Callable[[np.random.Generator, Ints, Ints], None]
"""Writes into zeroed inputs and ignored targets ``[N, S]`` of a block."""

BLOCK = 2048
"""Rows that are made at a time. Part of what a seed means: another number gives other rows."""


def blockwise(rows: int, length: int, seed: int, write: Block) -> ArrayRows:
    """``rows`` rows of ``length`` tokens, int32; block b draws from the generator (seed, b).

    So the first rows are the same however many are asked for, up to whole blocks.
    """
    inputs = np.zeros((rows, length), np.int32)
    targets = np.full((rows, length), IGNORED, np.int32)
    for number, start in enumerate(range(0, rows, BLOCK)):
        # A whole block is drawn even where a part is wanted, so that the part is a prefix.
        tokens = np.zeros((BLOCK, length), np.int64)
        wanted = np.full((BLOCK, length), IGNORED, np.int64)
        write(np.random.default_rng([seed, number]), tokens, wanted)
        kept = min(BLOCK, rows - start)
        inputs[start : start + kept] = tokens[:kept]
        targets[start : start + kept] = wanted[:kept]
    return ArrayRows(inputs, targets)


def distinct(random: np.random.Generator, rows: int, count: int, choices: int) -> Ints:
    """``[N, K]``: per row K different numbers below M, every ordered selection equally likely."""
    if 4 * count > choices:
        return random.permuted(np.tile(np.arange(choices), (rows, 1)), axis=1)[:, :count]
    drawn = random.integers(choices, size=(rows, count))
    # What repeats an earlier draw of its row is drawn again. No value is treated unlike another,
    # so all selections stay equally likely.
    again = np.arange(rows)
    while len(again):
        part = drawn[again]
        repeats = _repeats(part)
        part[repeats] = random.integers(choices, size=int(repeats.sum()))
        drawn[again] = part
        again = again[repeats.any(axis=1)]
    return drawn


def weighted_distinct(
    random: np.random.Generator, rows: int, count: int, weights: NDArray[np.float64]
) -> Ints:
    """``[N, K]``: per row K different indices, drawn one after the other by ``weights [M]``.

    The first K arrivals of M exponential clocks, whose rates are the weights, are such a draw.
    """
    arrivals = random.standard_exponential((rows, len(weights))) / weights
    return np.argsort(arrivals, axis=1, kind="stable")[:, :count]


def power_law(slots: int, power: float) -> NDArray[np.float64]:
    """Probabilities of slots 1, 2, ..: ``p_i ~ power * i^(power - 1)``; 1 makes all alike."""
    weights = np.asarray(power * np.arange(1, slots + 1) ** (power - 1), np.float64)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def fill(
    random: np.random.Generator, tokens: Ints, keys: Ints, vocab_size: int, free: NDArray[np.bool_]
) -> None:
    """Put random tokens into the places ``free [N, S]``, none of them in ``keys [N, K]``."""
    is_key = np.zeros((len(tokens), vocab_size), np.bool_)
    np.put_along_axis(is_key, keys, True, axis=1)
    row, place = np.nonzero(free)
    while len(row):
        drawn = random.integers(vocab_size, size=len(row))
        tokens[row, place] = drawn
        again = is_key[row, drawn]
        row, place = row[again], place[again]


def _repeats(drawn: Ints) -> NDArray[np.bool_]:
    """Where an entry equals one before it in its row."""
    order = np.argsort(drawn, axis=1, kind="stable")
    ordered = np.take_along_axis(drawn, order, axis=1)
    same = np.zeros(drawn.shape, np.bool_)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    repeats = np.empty_like(same)
    np.put_along_axis(repeats, order, same, axis=1)
    return repeats
