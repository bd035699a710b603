"""Recall tasks by name: ``mqar``, ``forgetting_recall``, ``compositional_recall``, and others."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from seqmix.training.rows import ArrayRows
from seqmix.training.task import Task
from seqmix_recall.accuracy import recall_report
from seqmix_recall.queries import compositional_rows, forgetting_rows, mqar_rows
from seqmix_recall.settings import (
    AssociativeSettings,
    CompositionalSettings,
    ForgettingSettings,
    InductionSettings,
    MQARSettings,
    RecallSettings,
)
from seqmix_recall.single import associative_rows, induction_rows

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = [
    "MQAR",
    "AssociativeRecall",
    "CompositionalRecall",
    "ForgettingRecall",
    "InductionHeads",
    "RecallTask",
]


class RecallTask(Task):
    """Rows that are drawn when they are first asked for, from two seeds of the options."""

    Config = RecallSettings

    def __init__(self, config: RecallSettings) -> None:
        """Keep the options; nothing is drawn yet."""
        self.config = config

    @abstractmethod
    def rows(self, count: int, seed: int) -> ArrayRows:
        """``count`` rows of this task."""

    @property
    def vocab_size(self) -> int:
        """The ids of keys, values and filler."""
        return self.config.vocab_size

    @property
    def train(self) -> ArrayRows:
        """``train_rows`` rows of ``seed``."""
        return self._train

    @property
    def held_out(self) -> ArrayRows:
        """``test_rows`` rows of ``test_seed``."""
        return self._held_out

    def report(self, model: Model) -> dict[str, Any]:
        """Accuracy on the held-out rows, overall and at every place that asks."""
        return recall_report(model, self.held_out)

    @cached_property
    def _train(self) -> ArrayRows:
        return self.rows(self.config.train_rows, self.config.seed)

    @cached_property
    def _held_out(self) -> ArrayRows:
        return self.rows(self.config.test_rows, self.config.test_seed)


class MQAR(RecallTask):
    """Multi-query associative recall (Arora et al. 2023)."""

    Config = MQARSettings
    config: MQARSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.queries.mqar_rows`."""
        return mqar_rows(self.config, count, seed)


class ForgettingRecall(RecallTask):
    """Recall of the latest of two values."""

    Config = ForgettingSettings
    config: ForgettingSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.queries.forgetting_rows`."""
        return forgetting_rows(self.config, count, seed)


class CompositionalRecall(RecallTask):
    """Recall by keys of two parts."""

    Config = CompositionalSettings
    config: CompositionalSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.queries.compositional_rows`."""
        return compositional_rows(self.config, count, seed)


class AssociativeRecall(RecallTask):
    """Plain associative recall, one question per row."""

    Config = AssociativeSettings
    config: AssociativeSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.single.associative_rows`."""
        return associative_rows(self.config, count, seed)


class InductionHeads(RecallTask):
    """What followed the special token, one question per row."""

    Config = InductionSettings
    config: InductionSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.single.induction_rows`."""
        return induction_rows(self.config, count, seed)
