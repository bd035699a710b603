"""Configurations that claim more than any model has: refused before anything is allocated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.core import tiny

from seqmix import model_size
from seqmix.blocks import MOST_BRANCHES
from seqmix.checkpoint import Checkpoint
from seqmix.cli.info import card
from seqmix.config import ModelConfig, build_config, read_config
from seqmix.errors import ConfigError
from seqmix.model import Model, _build_mixer
from seqmix.weights import Weights

STEP = {"kind": "mlp", "hidden": 4}


def config(**changes: Any) -> ModelConfig:
    options = {"vocab_size": 11, "width": 8, "context_length": 16, "blocks": [{"steps": [STEP]}]}
    return build_config(ModelConfig, {**options, **changes}, "it")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": [{"repeat": 10**9, "steps": [STEP]}]}, "repeat.*less than or equal to 20000"),
        ({"blocks": [{"repeat": 9000, "steps": [STEP] * 3}]}, "at most 20000 branches.*27000"),
        ({"blocks": [{"repeat": 9000, "steps": [STEP]}] * 3}, "a model has at most 20000"),
        (
            {"blocks": [{"repeat": 2, "steps": [STEP], "replace": [
                {"by": [STEP] * 9000, "at": list(range(2))}]}] * 2},
            "at most 20000 branches",
        ),
        ({"vocab_size": 10**12}, "vocab_size.*less than or equal"),
        ({"width": 10**12}, "width.*less than or equal"),
        ({"head_dim": 10**12}, "head_dim.*less than or equal"),
        ({"eos": [10**30]}, "eos.0"),
        ({"width": 10**5000}, "width.*what cannot be shown"),
    ],
)  # fmt: skip
def test_a_size_beyond_all_models(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_an_error_explains_a_few_of_many_problems() -> None:
    with pytest.raises(ConfigError, match="and 480 more") as error:
        config(eos=[0.5] * 500)
    assert len(str(error.value)) < 4000


def test_weights_that_no_memory_holds_are_counted_and_not_made() -> None:
    large = config(width=1 << 20, vocab_size=1 << 30)
    with pytest.raises(ConfigError, match=r"has 2,251,\d{3},\d{3},\d{3},\d{3} parameters, whose"):
        Model(large)


def test_options_that_no_tensor_can_have() -> None:
    large = config(blocks=[{"steps": [{"kind": "mlp", "hidden": 2**62}]}])
    with pytest.raises(ConfigError, match="mixer 'mlp' cannot be built with these options"):
        Model(large)


@pytest.mark.parametrize("branches", [[tiny.ATTENTION, tiny.MLP], [tiny.MLP, tiny.MLP]])
def test_the_count_is_that_of_the_model(branches: list[dict[str, Any]]) -> None:
    made = tiny.model(branches)
    config = made.config
    counted = model_size.parameter_count(config, lambda kind: _build_mixer(config, kind))
    assert counted == made.parameter_count()


def test_a_model_of_70_billion_weights_is_described_without_memory() -> None:
    attention = {"kind": "attention", "heads": 64, "kv_heads": 8, "head_dim": 128}
    swiglu = {"kind": "swiglu", "hidden": 28672}
    large = config(
        width=8192, vocab_size=128_256, blocks=[{"repeat": 80, "steps": [attention, swiglu]}]
    )
    assert 6.9e10 < card(Checkpoint(large, Weights({})))["parameters"] < 7.1e10


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.json", '{"width": ' + "9" * 5000 + "}", "has 5000 digits"),
        ("a.json", '{"width": 1, "width": 2}', "'width' appears twice"),
        ("a.json", " " * (1 << 20) + "{}", "is longer than the 1048576 bytes"),
        ("a.toml", "a = " + "[" * 3000, "is not valid TOML"),
        ("a.toml", "a." * 3000 + "a = 1", "key of more than 64 parts"),
        ("a.toml", "a = 0x" + "f" * 6000, "more than 40 digits"),
    ],
)
def test_a_file_without_measure(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / name)


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.json")
    with pytest.raises(ConfigError, match="is no regular file"):
        read_config(tmp_path / "model.json")


def test_the_deepest_that_is_allowed_is_read() -> None:
    read = config(blocks=[{"repeat": MOST_BRANCHES, "steps": [STEP]}])
    assert json.loads(read.to_json())["blocks"][0]["repeat"] == MOST_BRANCHES
