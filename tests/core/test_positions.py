"""Encodings that are added to the embeddings: values, the end of a table, every way to run them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import tiny

import seqmix
from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.generate import generate
from seqmix.model import Model
from seqmix.positions import Learned, LearnedConfig, Sinusoidal, SinusoidalConfig
from seqmix.storage import load_model, save_model
from seqmix.testing import check_model

LEARNED: dict[str, Any] = {"kind": "learned", "max_positions": 40}
WAVES: dict[str, Any] = {"kind": "sinusoidal"}
STEPS: list[Any] = [tiny.ATTENTION, tiny.MLP]


def make(position: dict[str, Any], **changes: Any) -> Model:
    return tiny.model(STEPS, position=position, head_dim=None, **changes)


@pytest.mark.parametrize("width", [1, 6, 7])
def test_waves_are_those_of_the_paper(width: int) -> None:
    made = Sinusoidal(SinusoidalConfig(theta=100.0), width=width)
    found = made.embed(torch.tensor([[0, 1, 5, -1, 10**6]]))
    assert found.shape == (1, 5, width)
    for slot, position in enumerate((0, 1, 5, 0, 10**6)):
        for channel in range(width):
            angle = position / 100 ** ((channel - channel % 2) / width)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert found[0, slot, channel].item() == pytest.approx(expected, abs=1e-9)


def test_a_learned_table_is_read_and_trained() -> None:
    made = Learned(LearnedConfig(max_positions=5), width=3)
    found = made.embed(torch.tensor([[4, 0, -1]]))
    assert torch.equal(found[0], made.weight[[4, 0, 0]])
    found.sum().backward()
    assert made.weight.grad is not None
    assert made.weight.grad[:, 0].tolist() == [2, 0, 0, 0, 1]


def test_fresh_tables_have_the_wanted_spread() -> None:
    made = Learned(LearnedConfig(max_positions=200, init_std=0.5), width=50)
    assert made.weight.std().item() == pytest.approx(0.5, rel=0.05)


def test_beyond_the_table() -> None:
    model = make(LEARNED)
    ids, positions = tiny.tokens(1, 2)
    model(ids, positions + 38)
    with pytest.raises(
        ConfigError, match=r"model 'model': positions should be in 0\.\.39, found 40;"
    ):
        model(ids, positions + 39)
    with pytest.raises(ConfigError, match="0 or more, or -1 at padding, found -2"):
        model(ids, positions - 2)
    assert isinstance(model.position, Learned)
    with pytest.raises(ConfigError, match=r"'learned': positions should be in 0\.\.39, found 40;"):
        model.position.embed(positions + 39)
    with pytest.raises(ConfigError, match="need 41 positions, model 'model' has learned 40"):
        list(generate(model, [1, 2], max_new_tokens=40))


@pytest.mark.parametrize("position", [LEARNED, WAVES], ids=["learned", "sinusoidal"])
@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_backends_agree(position: dict[str, Any], backend: str) -> None:
    model = make(position)
    compiled = seqmix.compile(model, backend, cache=False)
    check_model(model, {backend: compiled}, (1, 7, 65)).raise_for_failures()


@pytest.mark.parametrize("position", [LEARNED, WAVES], ids=["learned", "sinusoidal"])
@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_dtypes_padding_and_saving(position: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    model = make(position, dtype=dtype)
    ids, positions = tiny.tokens(1, 6)
    logits, _ = model(ids, positions)
    assert logits.dtype == model.dtype
    save_model(model, tmp_path / "model")
    near: dict[str, Any] = {"atol": 1e-9 if dtype == "f64" else 0.1, "rtol": 0}
    again = load_model(tmp_path / "model").eval()
    torch.testing.assert_close(again(ids, positions)[0], logits, **near)
    moved, _ = model(*tiny.padded(ids[0], 9, "left"))
    torch.testing.assert_close(moved[:, 3:], logits, **near)
    assert not torch.equal(model(ids, positions + 1)[0], logits)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="here: 'max_positions' is missing"):
        build_config(LearnedConfig, {}, "here")
    with pytest.raises(ConfigError, match=r"encoding 'sinusoidal': theta: .* greater than"):
        make({"kind": "sinusoidal", "theta": 1})
