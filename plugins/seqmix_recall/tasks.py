"""Recall tasks by name: ``mqar``, ``forgetting_recall``, ``compositional_recall``, and others."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from seqmix.training.rows import ArrayRows, Rows
from seqmix.training.task import Task
from seqmix_recall.accuracy import mixture_report, recall_report
from seqmix_recall.mixed import MixedRows
from seqmix_recall.queries import compositional_rows, forgetting_rows, mqar_rows
from seqmix_recall.settings import (
    AssociativeSettings,
    CompositionalSettings,
    ForgettingSettings,
    InductionSettings,
    MQARSettings,
    RecallSettings,
    Use,
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
    def train(self) -> Rows:
        """``train_rows`` rows of ``seed``."""
        return self._train

    @property
    def held_out(self) -> Rows:
        """``test_rows`` rows of ``test_seed``."""
        return self._held_out

    def report(self, model: Model) -> dict[str, Any]:
        """Accuracy on the held-out rows, overall and at every place that asks."""
        return recall_report(model, self.held_out)

    @cached_property
    def _train(self) -> Rows:
        return self.drawn("train")

    @cached_property
    def _held_out(self) -> Rows:
        return self.drawn("test")

    def drawn(self, use: Use) -> Rows:
        """The rows to train on, or those to test on."""
        own = self.config
        if use == "train":
            return self.rows(own.train_rows, own.seed)
        return self.rows(own.test_rows, own.test_seed)


class MQAR(RecallTask):
    """Multi-query associative recall (Arora et al. 2023)."""

    Config = MQARSettings
    config: MQARSettings

    def rows(self, count: int, seed: int) -> ArrayRows:
        """See :func:`~seqmix_recall.queries.mqar_rows`."""
        return mqar_rows(self.config, count, seed)

    def report(self, model: Model) -> dict[str, Any]:
        """Of a mixture the accuracy of every portion; else what every recall task reports."""
        if not self.config.mixture:
            return super().report(model)
        portions = self.config.portions()
        names = [f"accuracy_{portion.length}_{portion.pairs}" for portion in portions]
        return mixture_report(model, dict(zip(names, self._parts("test"), strict=True)))

    def drawn(self, use: Use) -> Rows:
        """The rows of all portions, of which some may have none."""
        return MixedRows(self._parts(use)) if self.config.mixture else super().drawn(use)

    def _parts(self, use: Use) -> list[ArrayRows]:
        seed = self.config.seed if use == "train" else self.config.test_seed
        portions = zip(self.config.portions(), self.config.counts(use), strict=True)
        return [mqar_rows(portion, count, seed) for portion, count in portions]


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
