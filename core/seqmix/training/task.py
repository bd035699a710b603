"""What a model is trained and tested on: a plugin of kind ``tasks``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, cast

from seqmix import registry
from seqmix.config import Kind, Strict, build_config
from seqmix.training.rows import Rows

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = ["Task", "build_task"]


class Task(ABC):
    """Rows to train on, rows that are held out, and what to report of a trained model.

    A task is made from its options alone: the same options give the same rows.
    """

    Config: ClassVar[type[Strict]]
    api: ClassVar[tuple[int, int]] = (1, 0)

    @abstractmethod
    def __init__(self, config: Any) -> None:
        """Take an instance of :attr:`Config`; ConfigError for what cannot be had."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The ids that rows use are below it."""

    @property
    @abstractmethod
    def train(self) -> Rows:
        """The rows to train on."""

    @property
    @abstractmethod
    def held_out(self) -> Rows:
        """The rows to test on; none of them is trained on."""

    def report(self, model: Model) -> dict[str, Any]:
        """Figures of a trained model beyond loss and accuracy, ready for JSON."""
        return {}

    def fingerprint(self) -> str:
        """Tells data apart that equal options do not, such as files that were changed."""
        return ""

    def files(self) -> dict[str, bytes]:
        """Files by name that a trained model needs beside it to be used, such as a tokenizer."""
        return {}


def build_task(kind: Kind) -> Task:
    """The task of a name with its options; ConfigError or PluginError for one that does not fit."""
    cls = cast("type[Task]", registry.get("tasks", kind.kind))
    return cls(build_config(cls.Config, kind.options, f"task '{kind.kind}'"))
