"""A saved model: configuration and safetensors, read to the last weight."""

from __future__ import annotations

from pathlib import Path

from tests.core import tiny
from tests.fuzz.target import Target

from seqmix.checkpoint import resolve
from seqmix.model import Model
from seqmix.storage import save_model

__all__ = ["TARGET"]


def make(folder: Path) -> None:
    save_model(tiny.model([tiny.ATTENTION, tiny.MLP]), folder)


def load(folder: Path) -> None:
    Model.from_checkpoint(resolve(folder))


TARGET = Target("saved", make, load)
