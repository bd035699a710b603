"""Which stretches of a document are read for a perplexity, and how their losses are averaged.

``single``: the first so many tokens of the document, read once. ``sliding`` (Press et al. 2022, as
in YaRN, section 4): a window of so many tokens moves over the document by a stride; of every window
but the first only what is new counts, so that all tokens count once, with the context that the
window allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqmix.errors import ConfigError
from seqmix_longcontext.reading import Losses

__all__ = ["Document", "Score", "Stretch", "cut_documents", "score", "sliding_windows"]


@dataclass(frozen=True)
class Document:
    """Tokens to be read, and where they come from."""

    name: str
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Stretch:
    """Tokens ``start .. stop - 1`` of a document, in one window.

    The losses of the first ``skip + 1`` of them are left out.
    """

    start: int
    stop: int
    skip: int = 0


@dataclass(frozen=True)
class Score:
    """Mean losses as perplexities.

    ``perplexity`` weighs every token alike. ``window_weighted`` weighs every window alike, as the
    YaRN paper's script does: there the first window, which has the most new tokens and the shortest
    contexts, counts no more than each of the others.
    """

    perplexity: float
    window_weighted: float
    windows: int
    targets: int


def score(windows: Sequence[Losses]) -> Score:
    """The two means of the losses of some windows, each with at least one."""
    targets = sum(map(len, windows))
    total = sum(float(losses.sum()) for losses in windows)
    means = float(np.mean([losses.mean() for losses in windows]))
    return Score(_exp(total / targets), _exp(means), len(windows), targets)


def sliding_windows(tokens: int, length: int, stride: int) -> list[Stretch]:
    """The windows of at most ``length`` over a document; all tokens but the first count once."""
    if not 1 <= stride < length:
        raise ConfigError(
            f"a stride of {stride} with windows of {length} tokens would leave tokens out, or "
            "without any context; make it at least 1 and less than the length"
        )
    windows, done = [], 0
    for start in range(0, tokens, stride):
        stop = min(start + length, tokens)
        # The first new token of a later window has at least the one before it as context.
        windows.append(Stretch(start, stop, max(done - start - 1, 0)))
        done = stop
        if stop == tokens:
            break
    return windows


def cut_documents(name: str, ids: Sequence[int], count: int, length: int) -> list[Document]:
    """So many stretches of a text, from the beginning on in equal distances, none over another.

    Raises ConfigError when the text is too short for that.
    """
    if count < 1:
        raise ConfigError(f"windows should be at least 1, found {count}")
    if count * length > len(ids):
        times = f"{count} x {length} are" if count > 1 else f"{length} are"
        raise ConfigError(
            f"{name}: has {len(ids)} tokens, {times} needed; give a longer text, fewer windows or "
            "shorter lengths"
        )
    apart = len(ids) // count
    starts = range(0, count * apart, apart)
    return [Document(name, start, tuple(ids[start : start + length])) for start in starts]


def _exp(mean: float) -> float:
    """Infinite where it is too large for a number."""
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf
