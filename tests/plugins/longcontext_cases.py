"""Small models, documents and a scripted runner for the tests of long contexts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.checkpoint import StreamDecoder
from seqmix.config import ModelConfig
from seqmix.model import Model

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, "


class Letters:
    """A tokenizer whose ids are the characters' codes."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def decoder(self) -> StreamDecoder:
        raise NotImplementedError

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        raise NotImplementedError


def config(**changes: Any) -> ModelConfig:
    """Two layers over bytes, trained (as it were) on 32 tokens."""
    attention = {"kind": "attention", "heads": 2, "head_dim": 8}
    fields = {
        "vocab_size": 128, "width": 12, "context_length": 32, "head_dim": 8,
        "position": {"kind": "rope", "theta": 50.0},
        "blocks": [{"repeat": 2, "steps": [attention, {"kind": "swiglu", "hidden": 16}]}],
        "tie_embeddings": True,
    }  # fmt: skip
    return ModelConfig.model_validate({**fields, **changes})


def model(seed: int = 0, **changes: Any) -> Model:
    """Weights far from trivial, float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Model(config(dtype="f64", **changes))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return made.eval().requires_grad_(False)


def ids(count: int) -> list[int]:
    return Letters().encode(TEXT * (count // len(TEXT) + 1))[:count]


def save(folder: Path, **changes: Any) -> Path:
    """A checkpoint on disk, with a tokenizer of bytes."""
    from seqmix.storage import save_model
    from seqmix.training.byte_tokens import byte_tokenizer

    save_model(model(vocab_size=256, **changes), folder)
    (folder / "tokenizer.json").write_text(byte_tokenizer(), encoding="utf-8")
    return folder


class Scripted(Executable):
    """Reads letters into its state; behind the question it says what ``answer`` makes of them."""

    def __init__(self, answer: Any) -> None:
        self.config = ModelConfig.model_validate({**config().model_dump(), "eos": [0]})
        self.report = Report("scripted", "cpu")
        self.answer = answer
        self.longest = 0

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        new, seen = inputs["input_ids"], inputs["state.0.seen"]
        self.longest = max(self.longest, new.shape[1])
        seen = torch.cat([seen, new], 1)
        text, said = "".join(map(chr, seen[0].tolist())), 0
        if (question := text.rfind("? The pass key is")) >= 0:
            wanted = self.answer(text[:question])
            done = len(text) - question - len("? The pass key is")
            said = ord(wanted[done]) if done < len(wanted) else 0
        logits = torch.zeros(1, new.shape[1], 128)
        logits[:, -1, said] = 1.0
        return {"logits": logits, "state.0.seen": seen}

    def save(self, directory: Path | str) -> None:
        raise NotImplementedError

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        return {"state.0.seen": torch.zeros(batch, 0, dtype=torch.int64)}


def copies_the_key(text: str) -> str:
    found = re.search(r"The pass key is (\d+)\.", text)
    return f" {found[1]}." if found else "?"
