"""Tokenizers that are trained on the text itself: plugins of kind ``tokenizers``, and their files.

A tokenizer is trained once for a text and found again by what it was made from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from seqmix import registry
from seqmix.checkpoint import Tokenizer
from seqmix.errors import ConfigError
from seqmix.training.tokens import documents, made_from
from seqmix.whole_file import write_whole

__all__ = ["SEPARATOR", "TokenizerTrainer", "train_tokenizer"]

SEPARATOR = "<|endoftext|>"
"""The token behind every document; written out in a text it is that token too."""


class TokenizerTrainer(ABC):
    """One way of finding a vocabulary; made without arguments."""

    api: ClassVar[tuple[int, int]] = (1, 0)

    @property
    @abstractmethod
    def version(self) -> str:
        """Changes when the same text would give another tokenizer."""

    @abstractmethod
    def train(self, texts: Iterator[str], size: int, separator: str) -> str:
        """A ``tokenizer.json`` with ``size`` tokens, of which ``separator`` has the id 0.

        The same texts give the same file. ConfigError when they do not give so many tokens.
        """

    @abstractmethod
    def load(self, path: Path) -> Tokenizer:
        """The tokenizer of such a file."""


def train_tokenizer(
    name: str, files: Sequence[Path], split: str | None, size: int, folder: Path
) -> tuple[Path, Tokenizer]:
    """The tokenizer that ``name`` trains on text files, and its ``tokenizer.json`` in ``folder``.

    ``split`` is what separates the documents of a file. ConfigError for files that cannot be read
    and for a ``size`` that they do not give; PluginError when there is no such trainer.
    """
    trainer: TokenizerTrainer = registry.get("tokenizers", name)()
    digest = made_from(files, [name, trainer.version, size, split, SEPARATOR])
    path = folder / f"{name}-{digest[:16]}.json"
    if not path.is_file():
        texts = (document for file in files for document in documents(file, split))
        try:
            content = trainer.train(texts, size, SEPARATOR)
        except ConfigError as error:
            raise ConfigError(f"tokenizer = '{name}', vocabulary = {size}: {error}") from error
        write_whole(path, content)
    return path, trainer.load(path)
