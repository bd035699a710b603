"""Tiny models for tests, with every kind of branch of the core and both kinds of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqmix.config import ModelConfig
from seqmix.model import Model

VOCAB = 53
ROPE: dict[str, Any] = {"kind": "rope", "theta": 100.0}
ATTENTION: dict[str, Any] = {"kind": "attention", "heads": 3, "kv_heads": 1, "head_dim": 6}
WINDOW: dict[str, Any] = {
    "kind": "attention", "heads": 2, "head_dim": 6, "window": 4, "bias": True, "output_bias": True,
}  # fmt: skip
SWIGLU: dict[str, Any] = {"kind": "swiglu", "hidden": 17}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": 13, "activation": "gelu_tanh"}


def config(steps: list[Any] | None = None, **changes: Any) -> ModelConfig:
    """Two repeats of attention, a parallel step of a window and SwiGLU, and an MLP."""
    steps = [ATTENTION, [WINDOW, SWIGLU], MLP] if steps is None else steps
    fields = {
        "vocab_size": VOCAB, "width": 10, "context_length": 64, "head_dim": 6, "position": ROPE,
        "blocks": [{"repeat": 2, "steps": steps}], "tie_embeddings": True,
    }  # fmt: skip
    return ModelConfig.model_validate({**fields, **changes})


def model(steps: list[Any] | None = None, seed: int = 0, **changes: Any) -> Model:
    """A model of :func:`config` whose weights, biases and norms included, are far from trivial."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Model(config(steps, **changes))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return made.eval().requires_grad_(False)


def tokens(batch: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Ids and positions without padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (batch, length), generator=generator)
    return ids, torch.arange(length).expand(batch, length)


def padded(row: Tensor, length: int, where: str) -> tuple[Tensor, Tensor]:
    """Ids and positions, both ``[1, length]``, of a row stretched by padding."""
    gap = length - len(row)
    at = {"left": 0, "right": len(row), "middle": len(row) // 2}[where]
    junk = torch.full((gap,), 7)
    hole = torch.full((gap,), -1)
    count = torch.arange(len(row))
    ids = torch.cat([row[:at], junk, row[at:]])
    positions = torch.cat([count[:at], hole, count[at:]])
    return ids.unsqueeze(0), positions.unsqueeze(0)
