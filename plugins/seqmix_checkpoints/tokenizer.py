"""Tokenizers of checkpoints, made with the ``tokenizers`` package when first used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from seqmix.errors import CheckpointError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError, read_json, read_text
from seqmix.whole_file import whole_place, write_whole
from seqmix_checkpoints.chat import render_chat
from seqmix_checkpoints.foreign_tokenizer import library, no_panics, read_tokenizer

__all__ = ["IncrementalDecoder", "TextTokenizer", "byte_pair_tokenizer", "tokenizer_of_directory"]

UNFINISHED = "\ufffd"
SHOWN = 40
REMEDY = "it is damaged, or not made for them"
TEXT_LIMIT = 1 << 20
"""Bytes of a chat template; the longest have some ten thousand."""
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen cuts as Llama 3 does, but each digit is a word.
SPLIT_WORDS = {
    "llama-bpe": LLAMA3_WORDS,
    "qwen2": LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}"),
}
SPLITTERS = ("gpt-2", "smollm", *SPLIT_WORDS)


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
        inner = self._inner
        with no_panics(f"the tokenizer fails on this text {text[:SHOWN]!r}", REMEDY):
            ids: list[int] = inner.encode(text, add_special_tokens=not begun).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        inner, wanted = self._inner, list(ids)
        with no_panics(f"the tokenizer fails on these ids {wanted[:SHOWN]}", REMEDY):
            text: str = inner.decode(wanted, skip_special_tokens=True)
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
        return render_chat(self.chat_template, messages, self._specials)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, as Hugging Face names them."""
        inner, path = self._inner, folder / "tokenizer.json"
        with whole_place(path) as part, no_panics(f"{path}: cannot be written", "make room"):
            inner.save(str(part))
        settings = {**self._specials, "chat_template": self.chat_template}
        text = json.dumps({k: v for k, v in settings.items() if v is not None}, indent=2)
        write_whole(folder / "tokenizer_config.json", text + "\n")


class IncrementalDecoder:
    """Decodes ids one by one and holds text back while a character is incomplete.

    It decodes a short window again at each id: the last complete piece, then the new ids, because
    some tokenizers drop the space in front of the first. A piece is never cut: the bytes of one
    character, spread over several ids, only mean something together.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """``decode`` turns ids into text and marks incomplete characters with U+FFFD."""
        self._decode = decode
        self._piece: list[int] = []
        self._new: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that is certain after this id."""
        self._new.append(token)
        text = self._decode([*self._piece, *self._new])
        certain = text.rstrip(UNFINISHED)
        new = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if certain == text:
            if new:
                self._piece, self._shown = self._new, len(self._decode(self._new))
            self._new = []
        return new

    def finish(self) -> str:
        """What was held back; the decoder is as new afterwards."""
        rest = self._decode([*self._piece, *self._new])[self._shown :]
        self._piece, self._new, self._shown = [], [], 0
        return rest


def byte_pair_tokenizer(
    tokens: Sequence[str],
    merges: Sequence[str],
    splitter: str,
    special: Sequence[str] = (),
    bos: str | None = None,
    whole: Sequence[str] = (),
) -> Any:
    """A byte-level BPE tokenizer; ``splitter`` names how text is cut into words before merging.

    ``special`` tokens are recognized in text and left out of decoded text; ``whole`` ones are
    recognized too, but are text. ``bos`` begins every encoded text.
    """
    if splitter not in SPLITTERS:
        raise CheckpointError(
            f"the tokenizer cuts text by the rule '{splitter}', which is not supported; "
            f"supported: {', '.join(SPLITTERS)}"
        )
    vocabulary = {str(token): i for i, token in enumerate(tokens)}
    pairs = _pairs(merges, vocabulary)
    if bos is not None and bos not in vocabulary:
        raise CheckpointError(f"the tokenizer's first token {bos[:80]!r} is none of its tokens")
    with no_panics("the tokenizer's merges do not fit its tokens", "fetch the file again"):
        return _byte_pairs(vocabulary, pairs, splitter, special, bos, whole)


def _byte_pairs(
    vocabulary: dict[str, int],
    pairs: list[tuple[str, str]],
    splitter: str,
    special: Sequence[str],
    bos: str | None,
    whole: Sequence[str],
) -> Any:
    parts = library()
    model = parts.models.BPE(vocabulary, pairs, ignore_merges=splitter == "llama-bpe")
    inner = parts.Tokenizer(model)
    inner.pre_tokenizer = _splitter(parts, splitter)
    if splitter == "qwen2":
        inner.normalizer = parts.normalizers.NFC()
    inner.decoder = parts.decoders.ByteLevel()
    inner.add_special_tokens([parts.AddedToken(t, special=True, normalized=False) for t in special])
    inner.add_tokens([parts.AddedToken(t, special=False, normalized=False) for t in whole])
    if bos is not None:
        # Under a name of our own: the token itself may hold spaces or look like a placeholder.
        first = {"id": "bos", "ids": [vocabulary[bos]], "tokens": [bos]}
        inner.post_processor = parts.processors.TemplateProcessing(
            single="bos $A", special_tokens=[first]
        )
    return inner


def _pairs(merges: Sequence[Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs of tokens; the library panics on some that do not fit, so they are tried."""
    pairs = []
    for merge in merges:
        left, _, right = str(merge).partition(" ")
        if not {left, right, left + right} <= vocabulary.keys() or not left or not right:
            raise CheckpointError(
                f"the tokenizer's merge {str(merge)[:80]!r} should be two of its tokens that give "
                "a third; the file is damaged, fetch it again"
            )
        pairs.append((left, right))
    return pairs


def tokenizer_of_directory(folder: Path) -> TextTokenizer | None:
    """The tokenizer next to a Hugging Face model; None when there is no ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    settings = _settings(folder / "tokenizer_config.json")
    template = settings.get("chat_template")
    if (own := folder / "chat_template.jinja").is_file():
        template = _text(own)

    specials = {k: _content(settings.get(k)) for k in ("bos_token", "eos_token")}
    return TextTokenizer(
        partial(read_tokenizer, path),
        _default_template(template),
        {k: v for k, v in specials.items() if v is not None},
    )


def _splitter(library: Any, name: str) -> Any:
    parts = library.pre_tokenizers
    if name == "gpt-2":
        return parts.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        first = parts.Digits(individual_digits=True)
        return parts.Sequence([first, parts.ByteLevel(add_prefix_space=False)])
    first = parts.Split(library.Regex(SPLIT_WORDS[name]), behavior="isolated")
    return parts.Sequence([first, parts.ByteLevel(add_prefix_space=False, use_regex=False)])


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = read_json(file_inside(path.parent, path.name))
    except UnreadableError as error:
        raise CheckpointError(f"{path}: {error}; fetch it again") from error
    return data if isinstance(data, dict) else {}


def _text(path: Path) -> str:
    try:
        return read_text(file_inside(path.parent, path.name), TEXT_LIMIT)
    except UnreadableError as error:
        raise CheckpointError(f"{path}: {error}; fetch it again") from error


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
