"""A small model, its tokenizer, and what it computes without the adapter to lm-eval."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import seqmix
from seqmix.config import Kind, ModelConfig
from seqmix.model import Model
from seqmix_harness.scoring import Score

CONTEXT = 24
BLOCKS = {
    "attention": [Kind(kind="attention", heads=2, head_dim=8), Kind(kind="swiglu", hidden=16)],
    "base_conv": [Kind(kind="base_conv", filter="short", taps=4)],
}


def make_model(kind: str = "attention", **changes: Any) -> Model:
    torch.manual_seed(3)
    settings: dict[str, Any] = {
        "name": kind,
        "vocab_size": 256,
        "width": 16,
        "context_length": CONTEXT,
        "init_std": 0.3,
        "bos": 1,
        "eos": [0],
        "blocks": [{"steps": BLOCKS[kind]}],
    }
    if kind == "attention":
        settings |= {"position": Kind(kind="rope"), "head_dim": 8}
    return Model(ModelConfig(**(settings | changes))).eval()


class Bytes:
    """Bytes as ids; ``bos`` begins every text and ``eos`` ends it, where they are given."""

    def __init__(self, bos: int | None = None, eos: int | None = None) -> None:
        self._before = [] if bos is None else [bos]
        self._behind = [] if eos is None else [eos]

    def encode(self, text: str) -> list[int]:
        return [*self._before, *text.encode(), *self._behind]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def decoder(self) -> Any:
        return SimpleNamespace(push=lambda token: chr(token), finish=lambda: "")

    def chat(self, messages: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def direct(model: Model, context: Sequence[int], continuation: Sequence[int]) -> Score:
    """One forward over what fits, and the sum over the continuation."""
    ids = [*context, *continuation][-(CONTEXT + 1) :]
    with torch.no_grad():
        logits, _ = model(torch.tensor([ids[:-1]]), torch.arange(len(ids) - 1).unsqueeze(0))
    table = torch.log_softmax(logits[0].double(), -1)[-len(continuation) :]
    targets = torch.tensor(list(continuation))
    total = table.gather(1, targets.unsqueeze(1)).sum()
    return Score(float(total), bool((table.argmax(-1) == targets).all()))


def greedy(model: Model, context: Sequence[int], count: int) -> list[int]:
    return list(seqmix.generate(model, list(context), max_new_tokens=count))


def needs_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without lm-eval; no network."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("lm_eval", reason='needs lm-eval, the extra "harness"')
    pytest.importorskip("tokenizers")
