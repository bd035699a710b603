#!/usr/bin/env python3
"""Continue a text with the compiled model in this folder: python run.py "a prompt" --tokens 40.

Runs without torch; needs what compiled_model.py needs, and for text the package tokenizers. A
folder that is damaged, incomplete or for another machine is one line of error, and exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqmix_tvm.compiled_model import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    CompiledModel,
    FolderError,
    check_folder,
)

__all__ = ["choose", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Continue a prompt; 1 where something is wrong with the folder or what it needs."""
    options = _options(arguments)
    try:
        _run(Path(__file__).resolve().parent, options)
    except Exception as error:  # Whatever it is, one line is what a person can use.
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


class Text:
    """The tokenizer of the folder, and the text of tokens as it becomes certain."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """FolderError where the model has no tokenizer."""
        if TOKENIZER not in manifest["files"]:
            raise FolderError(f"{folder}: the model has no tokenizer; give token numbers, --ids")
        try:
            import tokenizers
        except ImportError as error:
            raise FolderError(f"{error}; pip install tokenizers, or give --ids") from error
        self._inner = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
        settings = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
        self._bos = settings.get("bos_token")
        self._made: list[int] = []
        self._shown = ""

    def encode(self, text: str) -> list[int]:
        """Token numbers; the first token is not added to a text that starts with it."""
        begun = bool(self._bos) and text.startswith(self._bos)
        return list(self._inner.encode(text, add_special_tokens=not begun).ids)

    def push(self, token: int) -> str:
        """What a token adds to the text; nothing within a character."""
        self._made.append(token)
        return self._new(self._inner.decode(self._made).rstrip("\ufffd"))

    def finish(self) -> str:
        """What was held back."""
        return self._new(self._inner.decode(self._made))

    def _new(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown = text if new else self._shown
        return new


def choose(scores: np.ndarray[Any, Any], temperature: float, random: np.random.Generator) -> int:
    """The likeliest token, or one that is drawn."""
    if temperature == 0:
        return int(scores.argmax())
    scaled = scores.astype(np.float64) / temperature
    odds = np.exp(scaled - scaled.max())
    return int(random.choice(len(odds), p=odds / odds.sum()))


def _continue(
    model: CompiledModel, ids: list[int], options: argparse.Namespace, stop: set[int]
) -> Iterator[int]:
    random = np.random.default_rng(options.seed)
    for count in range(options.tokens):
        token = choose(model.read(ids), options.temperature, random)
        if token in stop:
            return
        yield token
        ids = [token]
        if count + 1 == options.tokens:
            return


def _run(folder: Path, options: argparse.Namespace) -> None:
    manifest = check_folder(folder)
    text = None if options.ids is not None else Text(folder, manifest)
    ids = options.ids if text is None else text.encode(options.prompt)
    _check_ids(ids, manifest["model"]["vocab_size"])
    model = CompiledModel(folder, manifest)
    started, made = time.perf_counter(), 0
    for token in _continue(model, ids, options, set(manifest["model"]["eos"])):
        made += 1
        print(f"{token} " if text is None else text.push(token), end="", flush=True)
    print("" if text is None else text.finish(), flush=True)
    seconds = time.perf_counter() - started
    print(f"{made} tokens in {seconds:.2f} s, prompt of {len(ids)} included", file=sys.stderr)


def _check_ids(ids: Sequence[int], vocabulary: int) -> None:
    if not ids:
        raise FolderError("the prompt has no tokens; give at least one")
    if wrong := [i for i in ids if not 0 <= i < vocabulary]:
        raise FolderError(f"token numbers should be in 0..{vocabulary - 1}, found {wrong[0]}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("prompt", nargs="?", help="the text to continue")
    parser.add_argument("--ids", type=int, nargs="+", help="token numbers instead of a text")
    parser.add_argument("--tokens", type=int, default=40, help="at most so many new tokens")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest")
    parser.add_argument("--seed", type=int, help="makes drawing repeatable")
    options = parser.parse_args(arguments)
    if (options.prompt is None) == (options.ids is None):
        parser.error("a prompt, or --ids, is needed")
    if options.tokens < 1 or not options.temperature >= 0:
        parser.error("--tokens should be at least 1, --temperature at least 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
