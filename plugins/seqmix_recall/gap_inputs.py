"""What a recall gap is measured on: two models or their scores, a text, training counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmix.cli.loading import compile_model, load_checkpoint, load_model
from seqmix.errors import ConfigError
from seqmix.training.tokens import TokenFile, build_tokens
from seqmix_recall.gap_counts import BigramCounts, count_bigrams
from seqmix_recall.gap_slices import wanted_codes
from seqmix_recall.gap_windows import Windows, is_token_file, read_tokens

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer
    from seqmix.generate import Runner

__all__ = ["Subject", "read_evaluated", "read_subject", "training_counts"]

SCORES, COUNTS = ".npy", ".npz"


@dataclass(frozen=True)
class Subject:
    """A model that is compared: a runner with its tokenizer, or, without one, its scores."""

    source: str
    runner: Runner | None = None
    tokenizer: Tokenizer | None = None
    identity: str = ""
    eos: int | None = None


def read_subject(source: str, backend: str = "torch", rope: str | None = None) -> Subject:
    """A model on a backend, or scores (``.npy``); CheckpointError and others as they come."""
    if Path(source).suffix == SCORES:
        return Subject(source)
    checkpoint = load_checkpoint(source, rope)
    identity = f"{checkpoint.weights.digest()} {checkpoint.config.to_json()} {backend}"
    model = load_model(checkpoint)
    runner = model if backend == "torch" else compile_model(model, backend)
    eos = checkpoint.config.eos[0] if checkpoint.config.eos else None
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return Subject(source, runner, checkpoint.tokenizer, digest, eos)


def read_evaluated(
    files: Sequence[Path],
    subjects: Sequence[Subject],
    cache: Path,
    separator: int | None,
    split: str | None,
) -> NDArray[Any]:
    """The tokens to score, of text files or of one token file.

    Text is cut by the tokenizer of each model that has one; ConfigError where two differ, where
    none has one, and for ids that a model does not know.
    """
    if any(map(is_token_file, files)):
        if len(files) > 1:
            raise ConfigError(f"{files[0]}: a token file stands alone, found {len(files)} files")
        tokens = read_tokens(files[0])
        highest = max((int(tokens[i : i + 1 << 24].max()) for i in _starts(tokens)), default=-1)
    else:
        file = _same_tokens(files, subjects, cache, separator, split)
        tokens, highest = file.tokens, file.highest
    for subject in subjects:
        size = highest + 1 if subject.runner is None else subject.runner.config.vocab_size
        if highest >= size:
            raise ConfigError(
                f"{subject.source}: the text uses id {highest}, the model has {size} ids; these "
                "are tokens of another tokenizer"
            )
    return tokens


def training_counts(
    sources: Sequence[Path],
    windows: Windows,
    subjects: Sequence[Subject],
    folder: Path,
    separator: int | None,
    split: str | None,
    watch: Callable[[int], None] | None = None,
) -> BigramCounts:
    """The training counts of the bigrams of ``windows``, made once and kept in ``folder``.

    A source is a file of counts (``.npz``, alone), of tokens, or a text.
    """
    if any(source.suffix == COUNTS for source in sources):
        if len(sources) > 1:
            raise ConfigError(f"{sources[0]}: counts stand alone, found {len(sources)} files")
        return BigramCounts.load(sources[0])
    texts = [source for source in sources if not is_token_file(source)]
    arrays = [read_tokens(source) for source in sources if is_token_file(source)]
    key = [windows.fingerprint, separator, split, *map(_identity, sources)]
    key += [tokenizer_identity(s) for s in subjects if s.tokenizer is not None]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = folder / f"counts-{name}.npz"
    if path.is_file():
        return BigramCounts.load(path)
    if texts:
        arrays.append(_tokenized(texts, _first(subjects), folder, separator, split).tokens)
    counts = count_bigrams(arrays, only=wanted_codes(windows), watch=watch)
    counts.save(path)
    return counts


def tokenizer_identity(subject: Subject) -> str:
    """Changes when the file that a tokenizer was read from does."""
    path = Path(subject.source)
    inside = path / "tokenizer.json"
    return _identity(inside if inside.is_file() else path)


def _same_tokens(
    files: Sequence[Path],
    subjects: Sequence[Subject],
    cache: Path,
    separator: int | None,
    split: str | None,
) -> TokenFile:
    """The tokens of a text, if all tokenizers agree on them."""
    first = _first(subjects)
    file = _tokenized(files, first, cache, separator, split)
    for other in subjects:
        if other is first or other.tokenizer is None:
            continue
        found = _tokenized(files, other, cache, separator, split)
        if found.digest != file.digest:
            raise ConfigError(_disagreement(first, other, file.tokens, found.tokens))
    return file


def _first(subjects: Sequence[Subject]) -> Subject:
    """A model with a tokenizer; ConfigError when there is none."""
    for subject in subjects:
        if subject.tokenizer is not None:
            return subject
    names = " and ".join(s.source for s in subjects)
    raise ConfigError(
        f"{names}: no tokenizer to read text with; put a tokenizer.json beside the weights, or "
        "give token files (.bin, .npy)"
    )


def _tokenized(
    files: Sequence[Path], subject: Subject, cache: Path, separator: int | None, split: str | None
) -> TokenFile:
    name = f"{subject.source} {tokenizer_identity(subject)}"
    return build_tokens(files, cache, subject.tokenizer, name, separator, split)


def _disagreement(one: Subject, two: Subject, some: NDArray[Any], others: NDArray[Any]) -> str:
    """Where two tokenizers part, in words."""
    size = min(len(some), len(others))
    unequal = np.flatnonzero(np.asarray(some[:size]) != np.asarray(others[:size]))
    place = int(unequal[0]) if len(unequal) else size
    shown = [int(ids[place]) if place < len(ids) else "the end" for ids in (some, others)]
    return (
        f"{one.source} and {two.source} have different tokenizers: {len(some)} and {len(others)} "
        f"tokens, at token {place} {shown[0]} and {shown[1]}; only models with one tokenizer can "
        "be compared token by token"
    )


def _starts(tokens: NDArray[Any]) -> range:
    return range(0, len(tokens), 1 << 24)


def _identity(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return str(path)
    return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
