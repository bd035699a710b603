"""The rows of recall tasks with one question, at their end.

Sizes: N rows of a block, K keys, S tokens.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from seqmix.training.rows import ArrayRows
from seqmix_recall.draws import Ints, blockwise, distinct
from seqmix_recall.settings import (
    AssociativeSettings,
    InductionSettings,
    key_range,
    value_range,
)

__all__ = ["associative_rows", "induction_rows"]


def associative_rows(settings: AssociativeSettings, rows: int, seed: int) -> ArrayRows:
    """Associative recall (Ba et al. 2016; Fu et al. 2023, table 1): ``k v k v .. k``, and which v.

    Every row has its own dictionary of ``keys`` pairs, which are shown at random, any number of
    times each; the last token is a key that was shown.
    """
    return blockwise(rows, settings.length, seed, partial(_associative, settings))


def induction_rows(settings: InductionSettings, rows: int, seed: int) -> ArrayRows:
    """Induction heads (Fu et al. 2023, table 1): random tokens, a special one at a random place.

    The special token, the last of the vocabulary, ends the row, and the target is what followed it
    the first time.
    """
    return blockwise(rows, settings.length, seed, partial(_induction, settings))


def _associative(
    s: AssociativeSettings, random: np.random.Generator, tokens: Ints, targets: Ints
) -> None:
    rows, shown = len(tokens), s.length // 2
    keys, values = key_range(s.vocab_size), value_range(s.vocab_size)
    own_keys = keys.start + distinct(random, rows, s.keys, len(keys))
    own_values = values.start + distinct(random, rows, s.keys, len(values))
    which = random.integers(s.keys, size=(rows, shown))
    tokens[:, 0:-1:2] = np.take_along_axis(own_keys, which, axis=1)
    tokens[:, 1::2] = np.take_along_axis(own_values, which, axis=1)
    asked = 2 * random.integers(shown, size=(rows, 1))
    tokens[:, -1:] = np.take_along_axis(tokens, asked, axis=1)
    targets[:, -1:] = np.take_along_axis(tokens, asked + 1, axis=1)


def _induction(
    s: InductionSettings, random: np.random.Generator, tokens: Ints, targets: Ints
) -> None:
    special = s.vocab_size - 1
    tokens[:] = random.integers(special, size=tokens.shape)
    # What follows it stands before the last token.
    place = random.integers(s.length - 2, size=(len(tokens), 1))
    np.put_along_axis(tokens, place, special, axis=1)
    tokens[:, -1] = special
    targets[:, -1:] = np.take_along_axis(tokens, place + 1, axis=1)
