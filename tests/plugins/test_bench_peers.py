"""The same model in transformers, as ``seqmix bench`` runs it, gives the same logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix import registry
from seqmix.checkpoint import Checkpoint
from seqmix.config import ModelConfig
from seqmix.model import Model
from seqmix.weights import Weights
from seqmix_xlstm.families import xlstm_large_config

pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "vocab_size": 64, "width": 32, "context_length": 64, "head_dim": 8,
    "position": {"kind": "rope", "theta": 100.0},
    "blocks": [
        {
            "repeat": 2,
            "steps": [
                {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 8},
                {"kind": "swiglu", "hidden": 48},
            ],
        }
    ],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", ["transformers", "transformers-xlstm"])
def test_prompt_steps_and_back(name: str) -> None:
    """Behind the prompt, and behind it once more after a rewind."""
    large = xlstm_large_config(64, 128, 2, heads=2)
    config = ModelConfig.model_validate(LLAMA) if name == "transformers" else large
    torch.manual_seed(0)
    model = Model(config).eval()
    peer = registry.get("peers", name)(Checkpoint(config, Weights.of(model)), 1)
    ids = torch.randint(0, 64, (1, 20))
    with torch.no_grad():
        wanted, _ = model(ids, torch.arange(20).unsqueeze(0))
        close(peer.read(ids[:, :17]), wanted[:, 16])
        for _ in range(2):
            peer.rewind()
            for t in range(17, 20):
                close(peer.step(ids[:, t : t + 1]), wanted[:, t])


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
