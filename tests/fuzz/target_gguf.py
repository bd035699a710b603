"""A GGUF file with a tokenizer."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.target_huggingface import read_all
from tests.plugins.checkpoint_samples import foreign_weights, write_gguf

from seqmix.checkpoint import resolve

__all__ = ["TARGET"]


def make(folder: Path) -> None:
    write_gguf(folder / "tiny.gguf", foreign_weights())


def load(folder: Path) -> None:
    read_all(resolve(folder / "tiny.gguf"))


TARGET = Target("gguf", make, load)
