"""Windows to look at, token by token: what stands there, and what both models gave it.

Sizes: N windows, S targets of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmix_recall.gap_counts import BigramCounts
from seqmix_recall.gap_hits import Hits, find_hits
from seqmix_recall.gap_windows import Windows

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer

__all__ = ["Passage", "choose_windows", "read_passage", "token_texts"]


@dataclass(frozen=True)
class Passage:
    """One window: ``texts [S + 1]`` of its tokens, the first of which is no target.

    ``model`` and ``reference`` are log probabilities ``[S]`` of the others.
    """

    title: str
    texts: tuple[str, ...]
    model: NDArray[Any]
    reference: NDArray[Any]
    hits: Hits


def choose_windows(gaps: NDArray[np.float64], count: int, seed: int) -> list[tuple[int, str]]:
    """Numbers of windows, each with why: one at random, then those that differ most on AR hits.

    ``gaps [N]`` are sums of reference minus model over the hits of a window.
    """
    if count < 1:
        return []
    first = int(np.random.default_rng(seed).integers(len(gaps)))
    order = [int(i) for i in np.argsort(-gaps, kind="stable") if i != first and gaps[i] > 0]
    largest = [(i, f"gap {rank} of {len(gaps)} on AR hits") for rank, i in enumerate(order, 1)]
    return [(first, "drawn at random"), *largest[: count - 1]]


def read_passage(
    number: int,
    why: str,
    windows: Windows,
    model: NDArray[Any],
    reference: NDArray[Any],
    counts: BigramCounts,
    threshold: int,
    tokenizer: Tokenizer | None,
) -> Passage:
    """A window with all that is known of its tokens."""
    tokens, valid = windows.take(number, number + 1)
    hits = find_hits(tokens, valid, counts, threshold)
    size = valid.shape[1]
    return Passage(
        f"window {number}: {why}",
        tuple(token_texts(tokenizer, tokens[0].tolist())),
        np.array(model[number, :size]),
        np.array(reference[number, :size]),
        hits,
    )


def token_texts(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """What every token adds to the text; empty within a character, the id without a tokenizer."""
    if tokenizer is None:
        return [f"{token} " for token in ids]
    decoder = tokenizer.decoder()
    texts = [decoder.push(token) for token in ids]
    texts[-1] += decoder.finish()
    return texts
