"""Plain language modelling on text files: predict the token that follows.

Sizes: N rows, S tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from seqmix import registry
from seqmix.checkpoint import Tokenizer, resolve
from seqmix.config import Strict
from seqmix.errors import ConfigError
from seqmix.training.byte_tokens import BYTES, byte_tokenizer
from seqmix.training.rows import Batch
from seqmix.training.task import Task
from seqmix.training.tokens import TokenFile, build_tokens
from seqmix.training.trained_tokenizer import SEPARATOR, train_tokenizer

__all__ = ["PackedRows", "Text", "TextConfig"]

BYTE_TOKENIZER = "bytes"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class TextConfig(Strict):
    """Options of :class:`Text`. Paths are relative to the working directory."""

    files: list[Path] = Field(min_length=1)
    """UTF-8 text, in this order."""
    length: PositiveInt
    """Tokens of a row."""
    tokenizer: str = BYTE_TOKENIZER
    """``bytes``, one that is trained on ``files`` (``bpe``), or a checkpoint that has one."""
    vocabulary: PositiveInt | None = None
    """The number of tokens of a tokenizer that is trained, the separator among them."""
    split: str | None = Field(default=None, min_length=1)
    """What separates documents within a file; None makes each file one document."""
    separator: NonNegativeInt | None = None
    """The id behind every document; by default byte 0, the separator of a tokenizer that is
    trained (its id is 0 too), or the checkpoint's first ``eos``."""
    held_out_files: list[Path] = Field(default_factory=list)
    """Text to test on; by default the end of ``files``."""
    held_out: float = Field(default=0.02, gt=0, lt=1)
    """The share of the rows that is kept for testing, without ``held_out_files``."""
    cache: Path = Path("out/tokens")
    """Where files of tokens are kept."""

    @model_validator(mode="after")
    def _held_out_is_other_text(self) -> Self:
        if both := set(self.files) & set(self.held_out_files):
            raise ValueError(f"{min(both)} is to be trained on and held out as well")
        return self


@dataclass(frozen=True)
class PackedRows:
    """Rows of S tokens cut from packed documents; each target is the token that follows.

    Row i begins where row i - 1 ended, whatever the documents: a model sees the separator and what
    stood before it in the row.
    """

    tokens: NDArray[Any]
    length: int
    first: int
    count: int

    def __len__(self) -> int:
        """The number of rows N."""
        return self.count

    def take(self, index: NDArray[np.int64]) -> Batch:
        """The rows of these numbers; positions count from 0."""
        starts = (np.asarray(index) + self.first)[:, None] * self.length
        read = self.tokens[starts + np.arange(self.length + 1)].astype(np.int64)
        pieces = torch.from_numpy(read)
        positions = torch.arange(self.length).repeat(len(pieces), 1)
        return Batch(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous(), positions)


class Text(Task):
    """Text files, packed: documents one behind the other, with a separator after each."""

    Config = TextConfig

    def __init__(self, config: TextConfig) -> None:
        """Tokenize what is not in the cache yet; ConfigError for too little text."""
        self.config = config
        self._separator = config.separator
        self._trained: Path | None = None
        tokenizer = self._tokenizer()
        self._train_file = self._tokens(config.files, tokenizer)
        self._test_file = (
            self._tokens(config.held_out_files, tokenizer) if config.held_out_files else None
        )
        self._train, self._held_out = self._cut()

    @property
    def train(self) -> PackedRows:
        """Rows of ``files``."""
        return self._train

    @property
    def held_out(self) -> PackedRows:
        """Rows of ``held_out_files``, or the last ones of ``files``."""
        return self._held_out

    @property
    def vocab_size(self) -> int:
        """One above the highest id that occurs; all ids of bytes, or of a trained tokenizer."""
        files = [self._train_file, *([self._test_file] if self._test_file else [])]
        least = BYTES if self.config.tokenizer == BYTE_TOKENIZER else self.config.vocabulary or 0
        return max(least, *(file.highest + 1 for file in files))

    def fingerprint(self) -> str:
        """The digests of all tokens."""
        return self._train_file.digest + (self._test_file.digest if self._test_file else "")

    def files(self) -> dict[str, bytes]:
        """``tokenizer.json``, so that the model can be run, and what belongs to it."""
        if self.config.tokenizer == BYTE_TOKENIZER:
            return {"tokenizer.json": byte_tokenizer().encode()}
        if self._trained is not None:
            return {"tokenizer.json": self._trained.read_bytes()}
        paths = [Path(self.config.tokenizer) / name for name in TOKENIZER_FILES]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}

    def _tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None for bytes; and the separator that goes with it."""
        c = self.config
        if c.tokenizer in registry.names("tokenizers"):
            return self._trained_here(c.tokenizer)
        if c.vocabulary is not None:
            raise ConfigError(
                f"task 'text': vocabulary = {c.vocabulary} is for a tokenizer that is trained "
                f"({', '.join(registry.names('tokenizers'))}), and '{c.tokenizer}' has its own; "
                "leave it out"
            )
        if c.tokenizer != BYTE_TOKENIZER:
            return self._of_checkpoint(c.tokenizer)
        self._separator = self._separator or 0
        return None

    def _trained_here(self, name: str) -> Tokenizer:
        c = self.config
        if c.vocabulary is None:
            raise ConfigError(
                f"task 'text': tokenizer = '{name}' is trained on the text and needs "
                "'vocabulary', its number of tokens, for example 4096"
            )
        self._trained, tokenizer = train_tokenizer(name, c.files, c.split, c.vocabulary, c.cache)
        if self._separator is None:
            (self._separator,) = tokenizer.encode(SEPARATOR)
        return tokenizer

    def _of_checkpoint(self, source: str) -> Tokenizer:
        checkpoint = resolve(source)
        if checkpoint.tokenizer is None:
            raise ConfigError(f"tokenizer = '{source}': this checkpoint has none; take another")
        if self._separator is None and checkpoint.config.eos:
            self._separator = checkpoint.config.eos[0]
        return checkpoint.tokenizer

    def _tokens(self, files: list[Path], tokenizer: Tokenizer | None) -> TokenFile:
        c = self.config
        # The name of a file of a trained tokenizer says what it was trained on.
        name = c.tokenizer if self._trained is None else self._trained.name
        return build_tokens(files, c.cache, tokenizer, name, self._separator, c.split)

    def _cut(self) -> tuple[PackedRows, PackedRows]:
        """Rows to train on, and rows that are held out: another file, or the end of the same."""
        tokens, length = self._train_file.tokens, self.config.length
        rows = max(0, len(tokens) - 1) // length
        if self._test_file is not None:
            others = self._test_file.tokens
            tests = PackedRows(others, length, 0, max(0, len(others) - 1) // length)
            train = PackedRows(tokens, length, 0, rows)
        else:
            kept = max(1, round(rows * self.config.held_out))
            train = PackedRows(tokens, length, 0, max(0, rows - kept))
            tests = PackedRows(tokens, length, len(train), rows - len(train))
        for what, some, found in (("train on", train, len(tokens)), ("test on", tests, rows)):
            if not len(some):
                raise ConfigError(
                    f"task 'text': {found} tokens give no row of length {length} to {what}; give "
                    "more text, or make 'length' smaller"
                )
        return train, tests
