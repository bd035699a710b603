"""The prompt of passkey retrieval: a number, hidden in filler (Mohtashami and Jaggi 2023)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from seqmix.checkpoint import Tokenizer
from seqmix.errors import ConfigError

__all__ = ["Prompt", "draw_prompt", "first_number", "hidden_prompt"]

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
HIDDEN = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
LOWEST, HIGHEST = 10_000, 99_999
CYCLES = 20
"""Rounds of filler whose tokens are counted to know how many there are in one."""


@dataclass(frozen=True)
class Prompt:
    """Token ids, the key that is hidden in them, and how far behind the beginning: 0 to 1."""

    ids: list[int]
    key: int
    depth: float


def draw_prompt(
    tokenizer: Tokenizer, length: int, depth: float | None, seed: tuple[int, ...]
) -> Prompt:
    """A prompt with a key of five digits; a depth of None is drawn too, all depths being alike."""
    random = np.random.default_rng(seed)
    key = int(random.integers(LOWEST, HIGHEST + 1))
    where = float(random.random()) if depth is None else depth
    return Prompt(hidden_prompt(tokenizer, length, where, key), key, where)


def hidden_prompt(tokenizer: Tokenizer, length: int, depth: float, key: int) -> list[int]:
    """Token ids of the longest prompt of at most ``length`` tokens.

    The key stands between two sentences of the filler, ``depth`` of which come before it. Raises
    ConfigError where the length has no room for the key and the question.
    """
    if not 0 <= depth <= 1:
        raise ConfigError(f"a depth should be between 0 and 1, found {depth}")
    least = len(tokenizer.encode(_text(0, 0, key)))
    if least > length:
        raise ConfigError(
            f"a prompt with a pass key has at least {least} tokens, found a length of {length}"
        )
    per_sentence = len(tokenizer.encode(" ".join(FILLER * CYCLES))) / (CYCLES * len(FILLER))
    count = int((length - least) / per_sentence)
    while len(tokenizer.encode(_text(count, depth, key))) <= length:
        count += 1
    while len(ids := tokenizer.encode(_text(count, depth, key))) > length:
        count -= 1
    return ids


def first_number(text: str) -> str:
    """The first digits of an answer, which are the answer; empty where there are none."""
    found = re.search(r"\d+", text)
    return "" if found is None else found[0]


def _text(sentences: int, depth: float, key: int) -> str:
    before = round(depth * sentences)
    filler = [FILLER[i % len(FILLER)] for i in range(sentences)]
    parts = [" ".join(filler[:before]), HIDDEN.format(key=key), " ".join(filler[before:])]
    return "\n".join([TASK, *filter(None, parts), QUESTION])
