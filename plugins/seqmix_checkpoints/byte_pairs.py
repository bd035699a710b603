"""Byte-level BPE tokenizers, trained on text by the ``tokenizers`` package.

Text is cut into words as GPT-2 does, then every word into its bytes; the pair of neighbours that
occurs most often becomes a token, again and again (Sennrich et al. 2016, section 3.2; bytes as in
Radford et al. 2019, section 2.2). Every text can be encoded, and comes back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from seqmix.errors import ConfigError
from seqmix.training.trained_tokenizer import TokenizerTrainer
from seqmix_checkpoints.chat import INSTALL
from seqmix_checkpoints.foreign_tokenizer import read_tokenizer
from seqmix_checkpoints.tokenizer import TextTokenizer

__all__ = ["BytePairs"]

BYTES = 256

LEAST = 2
"""How often a pair must occur to become a token: what occurs once is no pattern."""


class BytePairs(TokenizerTrainer):
    """Trains byte-level BPE; the entry point ``bpe``."""

    @property
    def version(self) -> str:
        """That of the library: it decides between pairs that are equally frequent."""
        return f"1, tokenizers {_library().__version__}"

    def train(self, texts: Iterator[str], size: int, separator: str) -> str:
        """The separator has the id 0, the bytes follow, then the pairs, frequent ones first."""
        if size <= BYTES:
            raise ConfigError(
                f"{BYTES} bytes and the separator '{separator}' are tokens of any text; make "
                f"'vocabulary' more than {BYTES}"
            )
        library = _library()
        inner = library.Tokenizer(library.models.BPE())
        inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=LEAST,
            special_tokens=[separator],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        if (found := inner.get_vocab_size()) < size:
            raise ConfigError(
                f"the text has pairs for {found} tokens only; make 'vocabulary' at most that, or "
                "give more text"
            )
        content: str = inner.to_str(pretty=True)
        return content

    def load(self, path: Path) -> TextTokenizer:
        """The tokenizer of a file; CheckpointError when it is damaged."""
        remedy = "remove it, and it is trained anew"
        return TextTokenizer(partial(read_tokenizer, path, remedy))


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            f"training a tokenizer needs the package tokenizers; {INSTALL}"
        ) from error
    return tokenizers
