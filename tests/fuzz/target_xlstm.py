"""xLSTM directories: that of transformers, and a block stack with YAML and a file of torch.save."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch
from tests.fuzz.target import Target
from tests.plugins.xlstm_samples import STACK_OPTIONS, stack_weights, write_hugging_face

from seqmix.checkpoint import resolve
from seqmix.model import Model

__all__ = ["STACK", "TARGET"]


def make(folder: Path) -> None:
    write_hugging_face(folder)


def make_stack(folder: Path) -> None:
    yaml = import_module("yaml")  # It has no types of its own.

    options = yaml.safe_dump({**STACK_OPTIONS, "vocab_size": 48})
    (folder / "config.yaml").write_text(options, encoding="utf-8")
    torch.save(stack_weights(), folder / "model.pt")


def load(folder: Path) -> None:
    Model.from_checkpoint(resolve(folder))


TARGET = Target("xlstm", make, load)
STACK = Target("xlstm_stack", make_stack, load)
