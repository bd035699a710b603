"""Texts of tasks as token ids, and what stands before a text that has no context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqmix.errors import ConfigError

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer
    from seqmix.config import ModelConfig

__all__ = ["Texts", "first_token"]


class Texts:
    """Encodes with or without the special tokens that a tokenizer adds by itself."""

    def __init__(self, tokenizer: Tokenizer, first: int) -> None:
        """``first`` is the id that stands before a text without a context."""
        self.tokenizer = tokenizer
        self.first = first
        self._before, self._behind = _added(tokenizer)

    def begun(self, text: str) -> list[int]:
        """Ids of a text with the special tokens in front of it that the tokenizer adds."""
        return self._without_end(self.tokenizer.encode(text))

    def plain(self, text: str) -> list[int]:
        """Ids of a text alone."""
        ids = self.begun(text)
        begins = ids[: len(self._before)] == self._before
        return ids[len(self._before) :] if begins else ids

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and of what continues it, split where the context's own ids end.

        Spaces at the end of the context move to the continuation, as lm-eval has it. Without a
        context the continuation follows :attr:`first`, which it may also begin with itself.
        """
        if not context:
            ids = self.plain(continuation)
            return (ids[:1], ids[1:]) if ids[:1] == [self.first] else ([self.first], ids)
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        before = self.begun(context)
        behind = self.begun(context + continuation)[len(before) :]
        return before or [self.first], behind

    def _without_end(self, ids: list[int]) -> list[int]:
        ends = self._behind and ids[-len(self._behind) :] == self._behind
        return ids[: -len(self._behind)] if ends else ids


def first_token(config: ModelConfig, tokenizer: Tokenizer, chosen: int | None = None) -> int:
    """What stands before a text without context: ``chosen``, bos, eos, or what is added anyway.

    ConfigError where there is no such token, or no such id.
    """
    added = _added(tokenizer)[0]
    known = [chosen, config.bos, *config.eos, *added]
    first = next((token for token in known if token is not None), None)
    if first is None:
        raise ConfigError(
            f"model '{config.name}' names neither bos nor eos, and its tokenizer adds none; say "
            "which id stands before a text without context (--prefix-token)"
        )
    if not 0 <= first < config.vocab_size:
        raise ConfigError(f"the first token should be in 0..{config.vocab_size - 1}, found {first}")
    return first


def _added(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that are added before and behind every text."""
    empty, one = tokenizer.encode(""), tokenizer.encode("a")
    before = 0
    while before < len(empty) and before < len(one) and empty[before] == one[before]:
        before += 1
    rest: Sequence[int] = empty[before:]
    behind = list(rest) if rest and list(one[-len(rest) :]) == list(rest) else []
    return empty[:before], behind
