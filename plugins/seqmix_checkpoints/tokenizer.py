"""Tokenizers of checkpoints, made with the ``tokenizers`` package when first used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from seqmix.errors import CheckpointError

__all__ = ["IncrementalDecoder", "TextTokenizer", "byte_pair_tokenizer", "tokenizer_of_directory"]

INSTALL = "pip install 'seqmix[checkpoints]'"
UNFINISHED = "\ufffd"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTERS = ("gpt-2", "llama-bpe", "smollm")


class TextTokenizer:
    """A tokenizer of the ``tokenizers`` package, with a chat template."""

    def __init__(
        self,
        build: Callable[[], Any],
        chat_template: str | None = None,
        specials: Mapping[str, str] | None = None,
    ) -> None:
        """``specials`` are what templates call ``bos_token`` and ``eos_token``."""
        self._build = build
        self.chat_template = chat_template
        self._specials = dict(specials or {})

    @cached_property
    def _inner(self) -> Any:
        return self._build()

    def encode(self, text: str) -> list[int]:
        """Token ids; the first token is not added to a text that starts with it."""
        bos = self._specials.get("bos_token")
        begun = bool(bos) and text.startswith(str(bos))
        ids: list[int] = self._inner.encode(text, add_special_tokens=not begun).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return text

    def decoder(self) -> IncrementalDecoder:
        """A decoder that starts from nothing."""
        return IncrementalDecoder(self.decode)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a conversation, up to where the answer begins."""
        if self.chat_template is None:
            raise CheckpointError(
                "the checkpoint has no chat template; write the prompt yourself and encode it"
            )
        return _render(self.chat_template, messages, self._specials)


class IncrementalDecoder:
    """Decodes ids one by one and holds text back while a character is incomplete.

    It decodes a short window again at each id: the last id that was complete, then the new ones,
    because some tokenizers drop the space in front of the first.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """``decode`` turns ids into text and marks incomplete characters with U+FFFD."""
        self._decode = decode
        self._window: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that is certain after this id."""
        self._window.append(token)
        text = self._decode(self._window)
        certain = text.rstrip(UNFINISHED)
        new = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if certain == text:
            self._window = self._window[-1:]
            self._shown = len(self._decode(self._window))
        return new

    def finish(self) -> str:
        """What was held back; the decoder is as new afterwards."""
        rest = self._decode(self._window)[self._shown :]
        self._window, self._shown = [], 0
        return rest


def byte_pair_tokenizer(
    tokens: Sequence[str],
    merges: Sequence[str],
    splitter: str,
    special: Sequence[str] = (),
    bos: str | None = None,
) -> Any:
    """A byte-level BPE tokenizer; ``splitter`` names how text is cut into words before merging."""
    if splitter not in SPLITTERS:
        raise CheckpointError(
            f"the tokenizer cuts text by the rule '{splitter}', which is not supported; "
            f"supported: {', '.join(SPLITTERS)}"
        )
    library = _library()
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        model = library.models.BPE(vocabulary, pairs, ignore_merges=splitter == "llama-bpe")
    except Exception as error:
        raise CheckpointError(f"the tokenizer's merges do not fit its tokens: {error}") from error
    inner = library.Tokenizer(model)
    inner.pre_tokenizer = _splitter(library, splitter)
    inner.decoder = library.decoders.ByteLevel()
    inner.add_special_tokens(
        [library.AddedToken(t, special=True, normalized=False) for t in special]
    )
    if bos is not None:
        inner.post_processor = library.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
        )
    return inner


def tokenizer_of_directory(folder: Path) -> TextTokenizer | None:
    """The tokenizer next to a Hugging Face model; None when there is no ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    settings = _settings(folder / "tokenizer_config.json")
    template = settings.get("chat_template")
    if (own := folder / "chat_template.jinja").is_file():
        template = own.read_text(encoding="utf-8")

    def build() -> Any:
        library = _library()
        try:
            return library.Tokenizer.from_file(str(path))
        except Exception as error:
            raise CheckpointError(
                f"{path}: is no usable tokenizer: {error}; fetch it again"
            ) from error

    specials = {k: _content(settings.get(k)) for k in ("bos_token", "eos_token")}
    return TextTokenizer(
        build, _default_template(template), {k: v for k, v in specials.items() if v is not None}
    )


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise CheckpointError(f"text needs the package tokenizers; {INSTALL}") from error
    return tokenizers


def _splitter(library: Any, name: str) -> Any:
    parts = library.pre_tokenizers
    if name == "gpt-2":
        return parts.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        first = parts.Digits(individual_digits=True)
        return parts.Sequence([first, parts.ByteLevel(add_prefix_space=False)])
    first = parts.Split(library.Regex(LLAMA3_WORDS), behavior="isolated")
    return parts.Sequence([first, parts.ByteLevel(add_prefix_space=False, use_regex=False)])


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no readable JSON: {error}") from error
    return data if isinstance(data, dict) else {}


def _content(value: Any) -> str | None:
    """A special token, which may be written out as an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _default_template(value: Any) -> str | None:
    """The template, or the one called ``default`` of a list of named ones."""
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _render(
    template: str, messages: Sequence[Mapping[str, str]], specials: Mapping[str, str]
) -> str:
    """Render in a sandbox: a template is part of a file that anyone may have written."""
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise CheckpointError(f"chat templates need the package jinja2; {INSTALL}") from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        text: str = environment.from_string(template).render(
            messages=[dict(m) for m in messages], add_generation_prompt=True, **specials
        )
    except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"the chat template refuses these messages: {error}") from error
    return text
