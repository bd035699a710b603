"""Tokenizers of the ``tokenizers`` package from files that anyone may have written.

The package is compiled code: it panics on some files, which is no ``Exception`` in Python, and it
ends the process where memory ends. So files are read within bounds here, what only grows text is
refused, and a panic becomes a CheckpointError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqmix.errors import CheckpointError, SeqmixError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError, read_bytes
from seqmix_checkpoints.chat import INSTALL

__all__ = ["library", "no_panics", "read_tokenizer"]

LIMIT = 64 << 20
"""Bytes: the largest known files, of vocabularies of 260,000 tokens, have 33 MB."""
GROWTH = 1000
"""How many times longer than the text what replaces it may be; known tokenizers have 3."""
SHOWN = 300


def read_tokenizer(path: Path, remedy: str = "fetch it again") -> Any:
    """The tokenizer of a ``tokenizer.json``; CheckpointError when it is damaged or hostile.

    It neither pads nor cuts text, whatever the file says: those are settings of its training.
    """
    try:
        text = read_bytes(file_inside(path.parent, path.name), LIMIT)
    except UnreadableError as error:
        raise CheckpointError(f"{path}: {error}; {remedy}") from error
    with no_panics(f"{path}: is no usable tokenizer", remedy):
        inner = library().Tokenizer.from_buffer(text)
        inner.no_padding()
        inner.no_truncation()
        _refuse_growth(inner, path)
    return inner


@contextmanager
def no_panics(where: str, remedy: str) -> Iterator[None]:
    """What the package raises, panics too, becomes a CheckpointError that begins with ``where``."""
    try:
        yield
    except (SeqmixError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise CheckpointError(
            f"{where}: {type(error).__name__}: {str(error)[:SHOWN]}; {remedy}"
        ) from error


def library() -> Any:
    """The package; CheckpointError where it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        raise CheckpointError(f"text needs the package tokenizers; {INSTALL}") from error
    return tokenizers


def _refuse_growth(inner: Any, path: Path) -> None:
    """CheckpointError for chains of replacements, and of templates, that let text explode."""
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        held = getattr(inner, part)
        found = 1.0 if held is None else _growth(json.loads(held.__getstate__()))
        if found > GROWTH:
            raise CheckpointError(
                f"{path}: the {part} makes text up to {found:.1e} times longer, which should be "
                f"at most {GROWTH}; the file is damaged or hostile, fetch it elsewhere"
            )


def _growth(part: Any) -> float:
    """How many times longer a part of a tokenizer may make its input."""
    if not isinstance(part, dict):
        return 1.0
    known = ("normalizers", "pretokenizers", "processors", "decoders")
    inner: list[Any] = next((part[key] for key in known if isinstance(part.get(key), list)), [])
    grown = math.prod(max(_growth(one), 1.0) for one in inner[:1000])
    if isinstance(content := part.get("content"), str):
        grown *= max(len(content), 1)
    if isinstance(single := part.get("single"), list):
        grown *= max(sum(isinstance(s, dict) and "Sequence" in s for s in single), 1)
    return min(grown, 1e300)
