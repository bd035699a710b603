"""Two small models that read bytes, and texts to compare them on."""

from __future__ import annotations

from pathlib import Path

import torch

from seqmix.config import Kind, ModelConfig
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix.training.byte_tokens import byte_tokenizer

__all__ = ["WORDS", "save_byte_model", "write_texts"]

WORDS = "the cat saw <b>Mia</b> & a dog; Mia saw \N{SNOWMAN} the cat\n"


def save_byte_model(folder: Path, kind: str, seed: int = 0, vocab_size: int = 256) -> Path:
    """A model of fresh weights, with a tokenizer of bytes beside it."""
    torch.manual_seed(seed)
    mixers = {
        "attention": Kind(kind="attention", heads=2, head_dim=8),
        "base_conv": Kind(kind="base_conv", filter="short", taps=4),
    }
    model = Model(
        ModelConfig(
            name=kind,
            vocab_size=vocab_size,
            width=16,
            context_length=64,
            init_std=0.3,
            blocks=[{"steps": [mixers[kind], {"kind": "swiglu", "hidden": 16}]}],
        )
    )
    save_model(model, folder)
    (folder / "tokenizer.json").write_text(byte_tokenizer(), encoding="utf-8")
    return folder


def write_texts(folder: Path) -> tuple[Path, Path]:
    """A text to score and one that was trained on."""
    text, train = folder / "text.txt", folder / "train.txt"
    text.write_text(WORDS * 5, encoding="utf-8")
    train.write_text((WORDS[:20] + "xyz ") * 30, encoding="utf-8")
    return text, train
