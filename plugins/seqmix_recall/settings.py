"""The sizes of recall tasks, and whether they fit into each other."""

from __future__ import annotations

import math
from typing import Literal, Self, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from seqmix.config import Strict

__all__ = [
    "AssociativeSettings",
    "CompositionalSettings",
    "ForgettingSettings",
    "InductionSettings",
    "MQARSettings",
    "PairSettings",
    "Portion",
    "QuerySettings",
    "RecallSettings",
    "Use",
    "key_range",
    "value_range",
]


Use: TypeAlias = Literal["train", "test"]


class RecallSettings(Strict):
    """What every recall task has; the first half of the vocabulary is keys, the second values."""

    vocab_size: PositiveInt = 8192
    length: PositiveInt = 64
    """Tokens of a row."""
    train_rows: PositiveInt = 100_000
    test_rows: PositiveInt = 3_000
    seed: NonNegativeInt = 0
    test_seed: NonNegativeInt = 10
    """Of the held-out rows; must differ from ``seed``."""

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        if self.seed == self.test_seed:
            raise ValueError(f"seed and test_seed are {self.seed} both: the tests would be trained")
        return self


class QuerySettings(RecallSettings):
    """A context of pairs, then queries at distances that follow a power law."""

    pairs: PositiveInt = 4
    """Different keys of a row, each of which is asked for once."""
    power: float = Field(default=0.01, gt=0)
    """Slot i after the context has probability ``~ i^(power - 1)``; 1 for all alike."""
    filler: Literal["zero", "random"] = "zero"
    """Between the queries; random tokens are never a key of their row."""

    def context_length(self) -> int:
        """Tokens before the first query."""
        return 2 * self.pairs

    def query_length(self) -> int:
        """Tokens of a query and the gap behind it."""
        return 2

    def slots(self) -> int:
        """Places where a query may begin."""
        return (self.length - self.context_length()) // self.query_length()

    def check_length(self) -> None:
        """ValueError when a row is too short for its context and queries."""
        needed = self.context_length() + self.query_length() * self.pairs
        if self.length < needed:
            raise ValueError(
                f"length = {self.length}, but {self.context_length()} tokens of context and "
                f"{self.pairs} queries of {self.query_length()} need {needed}; make it longer, "
                "or take fewer pairs"
            )

    @model_validator(mode="after")
    def _queries_fit(self) -> Self:
        self.check_length()
        return self


class PairSettings(QuerySettings):
    """Queries of keys that are one token."""

    generator: Literal["fast", "zoology"] = "fast"
    """``zoology`` draws in the order of the paper's repository and gives its rows bit for bit."""

    @model_validator(mode="after")
    def _vocabulary_suffices(self) -> Self:
        _check_vocabulary(self.vocab_size, self.pairs)
        return self


class Portion(Strict):
    """Rows of another length, or with another number of pairs, among those of the task."""

    length: PositiveInt
    pairs: PositiveInt
    train_rows: NonNegativeInt = 0
    test_rows: NonNegativeInt = 0


class MQARSettings(PairSettings):
    """Multi-query associative recall."""

    passes: PositiveInt = 1
    """How often the context shows all pairs."""
    mixture: list[Portion] = Field(default_factory=list)
    """What else is trained on and tested; all other options are those of the task."""

    def context_length(self) -> int:
        """All pairs, as often as there are passes."""
        return 2 * self.pairs * self.passes

    def portions(self) -> list[MQARSettings]:
        """The task without its mixture, then every portion of that as a task by itself.

        How many rows each has is what :meth:`counts` says.
        """
        plain = self.model_copy(update={"mixture": []})
        own = [{"length": p.length, "pairs": p.pairs} for p in self.mixture]
        return [plain, *(plain.model_copy(update=sizes) for sizes in own)]

    def counts(self, use: Use) -> list[int]:
        """Rows of every portion, the task itself first."""
        if use == "train":
            return [self.train_rows, *(portion.train_rows for portion in self.mixture)]
        return [self.test_rows, *(portion.test_rows for portion in self.mixture)]

    @model_validator(mode="after")
    def _portions_fit(self) -> Self:
        for number, portion in enumerate(self.portions()[1:]):
            try:
                portion.check_length()
                _check_vocabulary(portion.vocab_size, portion.pairs)
            except ValueError as error:
                raise ValueError(f"mixture.{number}: {error}") from error
        return self


class ForgettingSettings(PairSettings):
    """Recall of the latest value: ``updates`` keys get another one after all pairs were shown.

    The new value of the ``zoology`` generator may be the old one.
    """

    updates: PositiveInt = 2

    def context_length(self) -> int:
        """All pairs, then the updates."""
        return 2 * (self.pairs + self.updates)

    @model_validator(mode="after")
    def _updates_fit(self) -> Self:
        if self.updates > self.pairs:
            raise ValueError(f"updates = {self.updates} exceeds pairs = {self.pairs}")
        return self


class CompositionalSettings(QuerySettings):
    """Keys of two parts on a grid, so that neither part alone tells the value."""

    def context_length(self) -> int:
        """Two parts and a value per pair."""
        return 3 * self.pairs

    def query_length(self) -> int:
        """Two parts and a gap."""
        return 3

    def side(self) -> int:
        """First parts, and second parts, of a row."""
        return math.isqrt(self.pairs)

    @model_validator(mode="after")
    def _grid_fits(self) -> Self:
        if self.side() ** 2 != self.pairs:
            raise ValueError(f"pairs = {self.pairs} should be a square: 1, 4, 9, 16, ..")
        third = self.vocab_size // 3
        values = self.vocab_size - 2 * third
        if third - 1 < self.side() or values < self.pairs:
            raise ValueError(
                f"vocab_size = {self.vocab_size} has {max(0, third - 1)} first parts, {third} "
                f"second parts and {values} values; {self.side()}, {self.side()} and {self.pairs} "
                "are needed; make it larger"
            )
        return self


class AssociativeSettings(RecallSettings):
    """Plain associative recall: pairs throughout, and one query at the end."""

    keys: PositiveInt = 8
    """Different keys that a row may show, each any number of times and always with its value."""

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        if self.length < 3 or self.length % 2 == 0:
            raise ValueError(f"length = {self.length} should be odd, pairs and one query: 3, 5, ..")
        _check_vocabulary(self.vocab_size, self.keys)
        return self


class InductionSettings(RecallSettings):
    """Induction heads: what followed the special token, the last of the vocabulary."""

    @model_validator(mode="after")
    def _tokens_fit(self) -> Self:
        if self.length < 3:
            raise ValueError(
                f"length = {self.length} should be at least 3: special, answer, special"
            )
        if self.vocab_size < 2:
            raise ValueError(
                f"vocab_size = {self.vocab_size} should be at least 2: one answer, one special"
            )
        return self


def key_range(vocab_size: int) -> range:
    """The ids of keys; 0 is the filler."""
    return range(1, vocab_size // 2)


def value_range(vocab_size: int) -> range:
    """The ids of values."""
    return range(vocab_size // 2, vocab_size)


def _check_vocabulary(vocab_size: int, pairs: int) -> None:
    keys, values = len(key_range(vocab_size)), len(value_range(vocab_size))
    if min(keys, values) < pairs:
        raise ValueError(
            f"vocab_size = {vocab_size} has {keys} keys and {values} values, fewer than the "
            f"{pairs} of a row; make it at least {2 * pairs + 2}"
        )
