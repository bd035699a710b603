"""xLSTM directories: that of transformers, and a block stack with YAML and a file of torch.save."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from tests.fuzz.target import Target
from tests.plugins.xlstm_samples import STACK_OPTIONS, stack_weights, write_hugging_face

from seqmix.checkpoint import resolve
from seqmix.model import Model

__all__ = ["STACK", "TARGET"]

PICKLE = "data.pkl"


def make(folder: Path) -> None:
    write_hugging_face(folder)


def make_stack(folder: Path) -> None:
    yaml = import_module("yaml")  # It has no types of its own.

    options = yaml.safe_dump({**STACK_OPTIONS, "vocab_size": 48})
    (folder / "config.yaml").write_text(options, encoding="utf-8")
    torch.save(stack_weights(), folder / "model.pt")
    with zipfile.ZipFile(folder / "model.pt") as archive:
        (folder / PICKLE).write_bytes(archive.read(f"model/{PICKLE}"))


def load_stack(folder: Path) -> None:
    """The pickle inside the archive is the one beside it, so that edits reach it behind the zip."""
    path = folder / "model.pt"
    if path.is_file() and (folder / PICKLE).is_file() and zipfile.is_zipfile(path):
        with suppress(ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, OSError):
            _exchange(path, (folder / PICKLE).read_bytes())
    load(folder)


def _exchange(path: Path, pickle: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        if archive.read(f"model/{PICKLE}") == pickle:
            return
        held = {name: archive.read(name) for name in archive.namelist()[:200]}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**held, f"model/{PICKLE}": pickle}.items():
            archive.writestr(name, content)


def load(folder: Path) -> None:
    Model.from_checkpoint(resolve(folder))


TARGET = Target("xlstm", make, load)
STACK = Target("xlstm_stack", make_stack, load_stack)
