"""Every rope type of Hugging Face and GGUF: read, written back, and the same logits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugins.checkpoint_samples import (
    SIZES,
    foreign_weights,
    write_folder,
    write_gguf,
)

from seqmix.checkpoint import resolve
from seqmix.config import Kind, ModelConfig
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.families import to_transformers
from seqmix_checkpoints.rope import read_rope
from seqmix_checkpoints.rope_types import gguf_rope, rope_settings

ORIGINAL = "original_max_position_embeddings"
LISTS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 4.0, 9.0]}
TURNS = {"low_freq_factor": 0.1, "high_freq_factor": 1.5}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "default": ({}, {"kind": "rope"}, 64),
    "linear": ({"factor": 4.0}, {"kind": "linear", "factor": 4.0}, 64),
    "dynamic": (
        {"factor": 2.0},
        {"kind": "dynamic-ntk", "rate": 2.0, "original_context_length": 64},
        128,
    ),
    "yarn": (
        {
            "factor": 4.0,
            ORIGINAL: 16,
            "mscale": 0.7,
            "mscale_all_dim": 0.3,
            "beta_fast": 2.0,
            "beta_slow": 0.5,
            "truncate": False,
        },
        {
            "kind": "yarn",
            "factor": 4.0,
            "original_context_length": 16,
            "mscale": 0.7,
            "mscale_all_dim": 0.3,
            "beta_fast": 2.0,
            "beta_slow": 0.5,
            "truncate": False,
        },
        64,
    ),
    "llama3": (
        {"factor": 4.0, ORIGINAL: 16, **TURNS},
        {"kind": "llama3", "factor": 4.0, "original_context_length": 16, **TURNS},
        64,
    ),
    "longrope": (
        {ORIGINAL: 16, "factor": 4.0, **LISTS},
        {"kind": "longrope", "factor": 4.0, "original_context_length": 16, **LISTS},
        64,
    ),
    "proportional": (
        {"factor": 2.0, "partial_rotary_factor": 0.5},
        {"kind": "proportional", "factor": 2.0, "part": 0.5},
        64,
    ),
}


def read(**data: Any) -> tuple[dict[str, Any], int]:
    kind, length = read_rope({"max_position_embeddings": 64, **data}, "config.json")
    return {"kind": kind.kind, **kind.options}, length


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "type", "nested"])
def test_every_type_in_every_spelling(name: str, spelling: str) -> None:
    theirs, ours, length = CASES[name]
    inner = {"rope_type": name, "rope_theta": 500.0, **theirs}
    if spelling == "rope_parameters":
        found = read(rope_parameters=inner)
    elif spelling == "nested":
        found = read(rope_parameters={"full_attention": inner, "sliding_attention": dict(inner)})
    else:
        key = "type" if spelling == "type" else "rope_type"
        found = read(rope_scaling={key: name, **theirs}, rope_theta=500.0)
    assert found == ({"theta": 500.0, **ours}, length)


def test_old_names() -> None:
    theirs, ours, length = CASES["longrope"]
    assert read(rope_scaling={"type": "su", **theirs}) == ({"theta": 1e4, **ours}, length)
    text = {"rope_type": "mrope", "mrope_section": [2, 1, 1]}
    assert read(rope_scaling=text) == ({"kind": "rope", "theta": 1e4}, 64)


@pytest.mark.parametrize("name", CASES)
def test_written_back_as_they_were_read(name: str) -> None:
    theirs, ours, _ = CASES[name]
    expected = {"rope_type": name, "rope_theta": 500.0, **theirs}
    if name == "dynamic":
        expected[ORIGINAL] = 64
    assert rope_settings(Kind(theta=500.0, **ours)) == expected


@pytest.mark.parametrize(
    "position",
    [
        {"kind": "ntk", "factor": 2.0},
        {"kind": "dynamic-yarn", "original_context_length": 64},
        {"kind": "yarn", "factor": 2.0, "original_context_length": 64, "ramp": "turns"},
        {"kind": "yarn", "factor": 2.0, "original_context_length": 64, "scale_softmax": True},
        {"kind": "dynamic-ntk", "original_context_length": 64, "granularity": 8},
    ],
    ids=lambda p: p["kind"],
)
def test_what_transformers_has_no_words_for(position: dict[str, Any]) -> None:
    assert rope_settings(Kind(**position)) is None
    config = resolve_tiny().with_position(Kind(**position), 128)
    with pytest.raises(CheckpointError, match="expected one of the rope types default"):
        to_transformers(SimpleNamespace(LlamaConfig=dict), config, torch.nn.Module())


def resolve_tiny() -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "vocab_size": 37, "width": 24, "context_length": 64, "head_dim": 8,
            "blocks": [
                {"repeat": 2, "steps": [
                    {"kind": "attention", "heads": 3, "kv_heads": 1, "head_dim": 8},
                    {"kind": "swiglu", "hidden": 20},
                ]},
            ],
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    theirs, _, _ = CASES[name]
    rope = {"rope_type": name, "rope_theta": 500.0, **theirs}
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        **SIZES, rope_parameters=rope, attn_implementation="eager", pad_token_id=None
    )
    foreign = transformers.LlamaForCausalLM(config).eval()
    for parameter in foreign.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    foreign.save_pretrained(tmp_path)
    checkpoint = resolve(tmp_path)
    position = checkpoint.config.position
    assert position is not None
    if name in ("dynamic", "longrope"):
        # One scale for a whole call is what transformers computes.
        once = Kind(kind=position.kind, **position.options, mode="per_window")
        length = checkpoint.config.context_length
        checkpoint = checkpoint.with_config(checkpoint.config.with_position(once, length))
    ours = Model.from_checkpoint(checkpoint)
    again = (
        None
        if name in ("dynamic", "longrope")
        else to_transformers(transformers, ours.config, ours)
    )
    for length in (9, 64, 100):
        ids = torch.randint(0, 37, (2, length))
        with torch.inference_mode():
            expected = foreign(ids).logits
            logits, _ = ours(ids, torch.arange(length).expand(2, length))
            torch.testing.assert_close(logits, expected, atol=5e-4, rtol=1e-4)
            if again is not None:
                torch.testing.assert_close(again(ids).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "linear"}, "'linear' needs 'factor'"),
        ({"rope_type": "dynamic"}, "'dynamic' needs 'factor'"),
        ({"rope_type": "llama3", "factor": 8, ORIGINAL: 8}, "'low_freq_factor' and 'high_freq_"),
        ({"rope_type": "longrope", ORIGINAL: 8, **LISTS, "long_factor": None}, "needs 'long_fa"),
        ({"rope_type": "lineer", "factor": 2}, "did you mean 'linear'"),
        ({"rope_type": "linear", "factr": 2}, "did you mean 'factor'"),
        ({"rope_type": "linear", "factor": "2"}, "factor should be a number"),
        ({"rope_type": "longrope", ORIGINAL: 8, **LISTS, "short_factor": 3.0}, None),
        ({"rope_type": "longrope", ORIGINAL: 8, **LISTS, "short_factor": ["a"]}, "be a number"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2}, "remove one"),
        ("linear", "should be an object with rope_type"),
        (
            {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1.0}},
            "differ between 'full_attention' and 'sliding_attention'",
        ),
    ],
)
def test_what_is_missing_or_wrong(tmp_path: Path, rope: Any, said: str | None) -> None:
    folder = write_folder(tmp_path, rope_scaling=rope)
    with pytest.raises(CheckpointError, match=said) as error:
        resolve(folder)
    assert str(tmp_path) in str(error.value)


def test_a_list_of_another_length(tmp_path: Path) -> None:
    from seqmix.errors import ConfigError

    rope = {"rope_type": "longrope", ORIGINAL: 8, **LISTS, "short_factor": [1.0]}
    with pytest.raises(ConfigError, match="short_factor has 1 divisors, expected 4"):
        Model.from_checkpoint(resolve(write_folder(tmp_path, rope_scaling=rope)))


@pytest.mark.parametrize(
    ("rope", "warning"),
    [
        ({"rope_type": "yarn", "factor": 2.0}, f"should have {ORIGINAL}"),
        ({"rope_type": "llama3", "factor": 2.0, **TURNS}, f"should have {ORIGINAL}"),
        ({"rope_type": "yarn", "factor": 2.0, ORIGINAL: 16}, "factor is 2, but .* = 4"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, "does not read beta_fast"),
        ({"rope_type": "default", "factor": 2.0}, "does not read factor"),
    ],
)
def test_what_is_worth_a_warning(rope: dict[str, Any], warning: str) -> None:
    with pytest.warns(UserWarning, match=warning):
        read(rope_scaling=rope)


def test_populated_defaults_are_no_scaling() -> None:
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0}
    assert read(rope_parameters=rope) == ({"kind": "rope", "theta": 300.0}, 64)
    assert read(rope_scaling=None) == ({"kind": "rope", "theta": 1e4}, 64)


def test_the_original_length_beside_the_settings_wins() -> None:
    theirs, ours, _ = CASES["longrope"]
    del (inner := dict(theirs))["factor"]
    found, _ = read(rope_scaling={"type": "su", **inner}, **{ORIGINAL: 32})
    assert found == {"theta": 1e4, **ours, "original_context_length": 32, "factor": 2.0}


def test_a_beta_of_zero_is_the_default_one() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 16, "beta_fast": 0, "beta_slow": 0}
    assert not {"beta_fast", "beta_slow"} & set(read(rope_scaling=rope)[0])


def gguf_with(path: Path, tensors: dict[str, list[float]], **metadata: Any) -> Path:
    weights = {**foreign_weights(), **{k: torch.tensor(v) for k, v in tensors.items()}}
    return write_gguf(path, weights, metadata=metadata, names=tuple(tensors))


def test_gguf_divisors_are_those_of_llama3(tmp_path: Path) -> None:
    """A file keeps what the type does as one divisor per pair."""
    shared = {"factor": 8.0, "original_context_length": 64, **TURNS}
    llama3 = Model(resolve_tiny().with_position(Kind(kind="llama3", **shared), 64)).position
    plain = Model(resolve_tiny().with_position(Kind(kind="rope"), 64)).position
    divisors = plain.frequencies().inv_freq / llama3.frequencies().inv_freq
    path = gguf_with(tmp_path / "x.gguf", {"rope_freqs.weight": divisors.astype("f4").tolist()})
    checkpoint = resolve(path)
    assert checkpoint.config.context_length == 64
    found = Model.from_checkpoint(checkpoint).position
    np.testing.assert_allclose(
        found.frequencies().inv_freq, llama3.frequencies().inv_freq, rtol=1e-7
    )
    assert found.frequencies().attention_factor == 1.0
    assert found.caches_rotated_keys


def test_gguf_divisors_of_another_length(tmp_path: Path) -> None:
    path = gguf_with(tmp_path / "x.gguf", {"rope_freqs.weight": [1.0, 2.0]})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight of 4 divisors, found .*: 2"):
        resolve(path)


@pytest.mark.parametrize("name", ["default", "linear", "yarn"])
def test_gguf_keys_are_those_that_are_read(tmp_path: Path, name: str) -> None:
    _, ours, _ = CASES[name]
    position = {k: v for k, v in ours.items() if k not in ("mscale", "mscale_all_dim", "truncate")}
    keys = gguf_rope(Kind(theta=500.0, **position))
    assert keys is not None
    metadata = {f"llama.{key}": value for key, value in keys.items() if key != "rope.freq_base"}
    path = write_gguf(tmp_path / "x.gguf", foreign_weights(), metadata=metadata)
    found = resolve(path).config.position
    assert found == Kind(theta=1e4, **position)
    assert keys["rope.freq_base"] == 500.0


def test_gguf_has_no_keys_for_the_others() -> None:
    for position in (
        Kind(kind="ntk", factor=2.0),
        Kind(kind="yarn", factor=2.0, original_context_length=8, mscale=0.5),
        Kind(kind="llama3", factor=2.0, original_context_length=8),
    ):
        assert gguf_rope(position) is None
