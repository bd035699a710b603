"""Checkpoints: a model from outside, as configuration, lazy weights and tokenizer.

Readers are plugins of kind ``checkpoints``; :func:`resolve` asks each whether a source is its own.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch

from seqmix import registry
from seqmix.config import ModelConfig, read_config
from seqmix.errors import CheckpointError, ConfigError, PluginError, did_you_mean
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError, read_json
from seqmix.storage import CONFIG_FILE, is_saved, read_saved
from seqmix.weights import Weights

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "StorableTokenizer",
    "StreamDecoder",
    "Tokenizer",
    "resolve",
]

FRESH_SEED = 0


class StreamDecoder(Protocol):
    """Text from ids that arrive one by one."""

    def push(self, token: int) -> str:
        """The text that is certain after this id; empty within a character."""
        ...

    def finish(self) -> str:
        """What was held back; incomplete characters become U+FFFD."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens that are written out in it are recognized."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        ...

    def decoder(self) -> StreamDecoder:
        """A decoder that starts from nothing."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, ready for :meth:`encode`, of messages with ``role`` and ``content``."""
        ...


@runtime_checkable
class StorableTokenizer(Tokenizer, Protocol):
    """A tokenizer that can be written for programs that know nothing of seqmix."""

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``, and ``tokenizer_config.json`` with first token and template."""
        ...


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a model consists of; ``source`` is what :func:`resolve` finds it by."""

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    source: str = ""

    def with_config(self, config: ModelConfig) -> Checkpoint:
        """The same weights and tokenizer under another configuration."""
        return dataclasses.replace(self, config=config)


class CheckpointReader(ABC):
    """Reads one foreign format. Readers are made without arguments."""

    name: ClassVar[str]
    api: ClassVar[tuple[int, int]] = (1, 0)

    @abstractmethod
    def matches(self, source: str) -> bool:
        """Whether a source, a path or a name, looks like this format; cheap, raises nothing."""

    @abstractmethod
    def read(self, source: str) -> Checkpoint:
        """Read a source that matches; CheckpointError when it is broken. Weights stay lazy."""

    def tokenizer(self, source: str) -> Tokenizer | None:
        """The tokenizer that lies with a source, whoever reads its weights; None for none."""
        return None


def resolve(source: str | Path) -> Checkpoint:
    """The checkpoint that a path or a name stands for.

    A directory that ``save_model`` wrote, a configuration (``.json``, ``.toml``) with fresh
    weights of a fixed seed, or whatever an installed reader knows. CheckpointError otherwise. A
    ``tokenizer.json`` in the directory is found whoever reads the weights.
    """
    text = str(source)
    path = Path(text)
    saved = is_saved(path)
    if saved and _is_own_config(path / CONFIG_FILE):
        return _with_tokenizer(_read_own(path), text)
    if path.suffix in (".json", ".toml") and path.is_file():
        return _fresh(path)
    tried = ["a directory of seqmix (config.json, model.safetensors)", "a .json or .toml file"]
    for reader in _readers(tried):
        if reader.matches(text):
            return _with_tokenizer(reader.read(text), text)
    if saved and not _is_foreign_config(path / CONFIG_FILE):
        return _read_own(path)
    raise CheckpointError(_unknown(text, path, tried))


def _readers(tried: list[str]) -> Iterator[CheckpointReader]:
    """A reader of each kind that is installed; what they are called, broken ones too, to tried."""
    for name in registry.names("checkpoints"):
        try:
            reader: CheckpointReader = registry.get("checkpoints", name)()
        except PluginError as error:
            tried.append(f"reader '{name}', which failed: {error}")
            continue
        tried.append(f"reader '{name}'")
        yield reader


def _with_tokenizer(checkpoint: Checkpoint, source: str) -> Checkpoint:
    """A checkpoint whose reader knows no tokenizers gets the one that another reader finds."""
    if checkpoint.tokenizer is not None:
        return checkpoint
    found = next((t for r in _readers([]) if (t := r.tokenizer(source)) is not None), None)
    template = checkpoint.chat_template or getattr(found, "chat_template", None)
    return dataclasses.replace(checkpoint, tokenizer=found, chat_template=template)


def _read_own(path: Path) -> Checkpoint:
    try:
        config, weights = read_saved(path)
    except ConfigError as error:
        raise CheckpointError(f"{error}; correct {CONFIG_FILE} or save the model again") from error
    return Checkpoint(config, weights, source=str(path))


def _fresh(path: Path) -> Checkpoint:
    """A configuration, and weights that are drawn when they are asked for."""
    config = read_config(path)
    return Checkpoint(config, Weights.of_later(lambda: _drawn(config)), source=str(path))


def _drawn(config: ModelConfig) -> Model:
    """A model of a fixed seed; torch's global generator is left as it was."""
    from seqmix.model import Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FRESH_SEED)
        return Model(config)


def _is_own_config(path: Path) -> bool:
    """Whether a configuration is certainly ours, or is nobody's: it has blocks, or is no JSON."""
    data = _json(path)
    return data is None or "blocks" in data


def _is_foreign_config(path: Path) -> bool:
    """Whether a configuration says that it is someone else's: foreign ones name a model type."""
    return bool({"model_type", "architectures"} & set(_json(path) or {}))


def _json(path: Path) -> dict[str, object] | None:
    """The object that a file holds; None where that is not what it holds."""
    try:
        data = read_json(file_inside(path.parent, path.name))
    except UnreadableError:
        return None
    return data if isinstance(data, dict) else None


def _unknown(text: str, path: Path, tried: list[str]) -> str:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        found = f"the directory holds {inside}{_leading_out(path)}"
    else:
        found = "the file is of no known format" if path.exists() else "there is no such path"
    near = [*registry.names("checkpoints")]
    if path.exists():
        near = []
    elif path.parent.is_dir():
        near += [str(path.parent / p.name) for p in sorted(path.parent.iterdir())[:1000]]
    return f"'{text}' is no checkpoint{did_you_mean(text, near)}: {found}; tried {'; '.join(tried)}"


def _leading_out(folder: Path) -> str:
    try:
        file_inside(folder, CONFIG_FILE)
    except UnreadableError as error:
        return f"; {CONFIG_FILE} {error}"
    return ""
