"""A whole hybrid model against values of the Zoology repository: BaseConv, then attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import seqmix
from seqmix import registry
from seqmix.context import Context
from seqmix.families import gpt_config
from seqmix.mixer import SequenceMixer
from seqmix.model import Model
from seqmix.state import State
from seqmix.testing import check_model

GOLDEN = Path(__file__).parents[1] / "golden" / "zoology" / "lm_baseconv_attention.npz"


class Nothing(SequenceMixer):
    """No feed-forward branch as that repository has it: what comes out of the norm is added."""

    class Config(seqmix.Strict):
        """No options."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return x * 1.0, {}

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 0


@pytest.fixture(autouse=True)
def _nothing() -> Iterator[None]:
    with registry.register_local("mixers", "nothing", Nothing):
        yield


@pytest.fixture
def golden() -> dict[str, Tensor]:
    with np.load(GOLDEN) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def make(golden: dict[str, Tensor]) -> Model:
    attention = {"kind": "attention", "heads": 1, "head_dim": 8, "bias": True, "output_bias": True}
    config = gpt_config(
        32,
        8,
        2,
        mixer={"kind": "base_conv", "taps": 3},
        replace={"by": attention, "count": 1},
        mlp={"kind": "nothing"},
        position="none",
        context_length=16,
    )
    model = Model(config)
    model.load_state_dict(renamed(golden), strict=True)
    return model.eval().requires_grad_(False)


def renamed(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights under our names."""
    theirs = {k.removeprefix("p.backbone."): v for k, v in golden.items() if k.startswith("p.")}
    conv, attn = (f"layers.{i}.sequence_mixer.mixer." for i in (0, 1))
    first, second = (f"steps.{i}.branches.0.mixer." for i in (0, 2))
    ours = {
        "embed.weight": theirs["embeddings.word_embeddings.weight"],
        f"{first}projection.weight": theirs[f"{conv}projection.weight"],
        f"{first}projection.bias": theirs[f"{conv}projection.bias"],
        f"{first}short.weight": theirs[f"{conv}conv.conv.weight"].squeeze(1),
        f"{first}short.bias": theirs[f"{conv}conv.conv.bias"],
    }
    for part in ("weight", "bias"):
        ours[f"norm.{part}"] = theirs[f"ln_f.{part}"]
        ours[f"{second}output.{part}"] = theirs[f"{attn}out_proj.{part}"]
        joined = theirs[f"{attn}Wqkv.{part}"].chunk(3)
        for name, piece in zip(("query", "key", "value"), joined, strict=True):
            ours[f"{second}{name}.{part}"] = piece
        for step in range(4):
            norm = theirs[f"layers.{step // 2}.norm{step % 2 + 1}.{part}"]
            ours[f"steps.{step}.branches.0.norm.{part}"] = norm
    return ours


def test_hidden_states_and_logits(golden: dict[str, Tensor]) -> None:
    model = make(golden)
    assert [b.kind for b in model.config.branches()][::2] == ["base_conv", "attention"]
    ids = golden["ids"].long()
    positions = torch.arange(16).expand(2, 16)
    seen: list[Tensor] = []
    model.norm.register_forward_hook(lambda *call: seen.append(call[2]))
    logits, _ = model(ids, positions)
    torch.testing.assert_close(seen[0], golden["hidden"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, golden["logits"], atol=1e-5, rtol=1e-5)


def test_decoded_token_by_token(golden: dict[str, Tensor]) -> None:
    model = make(golden)
    ids = golden["ids"].long()
    states: Any = None
    for t in range(16):
        logits, states = model(ids[:, t : t + 1], torch.full((2, 1), t), states)
        torch.testing.assert_close(logits[:, 0], golden["logits"][:, t], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_compiled(golden: dict[str, Tensor], backend: str) -> None:
    model = make(golden)
    compiled = seqmix.compile(model, backend, cache=False)
    check_model(model, {backend: compiled}, (1, 7, 20)).raise_for_failures()
    logits, _ = compiled(golden["ids"].long(), torch.arange(16).repeat(2, 1))
    torch.testing.assert_close(logits, golden["logits"], atol=1e-5, rtol=1e-5)
