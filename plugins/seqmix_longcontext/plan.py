"""What a measurement of perplexity reads: documents, lengths, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqmix.checkpoint import Tokenizer
from seqmix.errors import ConfigError
from seqmix_longcontext.windows import Document, cut_documents, sliding_windows

__all__ = ["Plan", "read_documents"]


@dataclass(frozen=True)
class Plan:
    """Documents, and the lengths of the contexts in which they are read.

    Each length reads the first so many documents that ``counts`` says, all without it. ``single``
    reads the document cut at the length; ``sliding`` moves windows of the length over the whole
    document by ``stride`` tokens.
    """

    documents: Sequence[Document]
    lengths: Sequence[int]
    counts: Sequence[int] = ()
    mode: str = "single"
    stride: int = 256

    def __post_init__(self) -> None:
        """ConfigError for a plan that cannot be kept."""
        if not self.lengths or min(self.lengths) < 2 or len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(
                "lengths should be different numbers of tokens, at least 2, found "
                f"{', '.join(map(str, self.lengths)) or 'none'}"
            )
        if self.mode not in ("single", "sliding"):
            raise ConfigError(f"the mode should be single or sliding, found '{self.mode}'")
        if not self.documents:
            raise ConfigError("there is no document to read")
        if self.counts and len(self.counts) != len(self.lengths):
            raise ConfigError(
                f"there are {len(self.counts)} numbers of windows for {len(self.lengths)} lengths; "
                "give one for all, or one for each"
            )
        for length in self.lengths:
            _check_long_enough(self.of(length), length)

    def of(self, length: int) -> Sequence[Document]:
        """The documents that are read at a length."""
        if not self.counts:
            return self.documents
        return self.documents[: self.counts[list(self.lengths).index(length)]]

    def longest(self, document: Document) -> int:
        """The longest length at which a document is read."""
        return max(length for length in self.lengths if document in self.of(length))

    @property
    def tokens(self) -> int:
        """How many tokens one method reads, where a pass serves all shorter lengths."""
        if self.mode == "single":
            return sum(self.longest(document) for document in self.documents)
        windows = [
            window
            for length in self.lengths
            for document in self.of(length)
            for window in sliding_windows(len(document.ids), length, self.stride)
        ]
        return sum(window.stop - window.start for window in windows)


def read_documents(
    files: Sequence[Path], tokenizer: Tokenizer, size: int, count: int, bos: int | None = None
) -> list[Document]:
    """``count`` stretches of ``size`` tokens of every text file: the first of each, the second ..

    ``bos`` is put in front of each, as one of its tokens. Raises ConfigError where a file cannot be
    read or is too short.
    """
    if not files:
        raise ConfigError("there is no text to read; name a file with --text")
    per_file = [
        cut_documents(str(file), tokenizer.encode(_text(file)), count, size) for file in files
    ]
    documents = [document for row in zip(*per_file, strict=True) for document in row]
    if bos is None:
        return documents
    return [Document(d.name, d.start, (bos, *d.ids[:-1])) for d in documents]


def _check_long_enough(documents: Sequence[Document], length: int) -> None:
    for document in documents:
        if len(document.ids) < length:
            raise ConfigError(
                f"{document.name}: has {len(document.ids)} tokens from token {document.start} on, "
                f"{length} are needed; give a longer text or shorter lengths"
            )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as UTF-8 text: {error}") from error
