"""Configurations from JSON and TOML, and what their errors say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.core import tiny

from seqmix.config import Kind, ModelConfig, NormConfig, Strict, build_config, read_config
from seqmix.errors import ConfigError

GOOD: dict[str, Any] = {
    "vocab_size": 5,
    "width": 4,
    "context_length": 8,
    "blocks": [{"steps": [{"kind": "mlp", "hidden": 3}]}],
}


def read(tmp_path: Path, text: str, suffix: str = ".json") -> ModelConfig:
    path = tmp_path / f"config{suffix}"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_json_round_trip(tmp_path: Path) -> None:
    config = tiny.config(norm={"kind": "layer", "eps": 1e-6}, eos=[3, 4], bos=1)
    assert read(tmp_path, config.to_json()) == config


def test_options_of_none_survive(tmp_path: Path) -> None:
    config = tiny.config([{**tiny.ATTENTION, "window": None}])
    again = read(tmp_path, config.to_json())
    assert again.branches()[0].options["window"] is None
    assert again == config


def test_toml(tmp_path: Path) -> None:
    text = """
    vocab_size = 5
    width = 4
    context_length = 8
    position = {kind = "rope", theta = 1e4}
    head_dim = 2
    [[blocks]]
    repeat = 2
    steps = [{kind = "mlp", hidden = 3}, [{kind = "a"}, {kind = "b", heads = 2}]]
    """
    config = read(tmp_path, text, ".toml")
    assert config.position == Kind.model_validate({"kind": "rope", "theta": 1e4})
    assert [[b.kind for b in step] for step in config.steps()] == [["mlp"], ["a", "b"]] * 2
    assert config.branches()[2].options == {"heads": 2}


def test_defaults() -> None:
    config = ModelConfig.model_validate(GOOD)
    assert (config.norm, config.dtype, config.tie_embeddings) == (NormConfig(), "f32", False)
    assert (config.position, config.bos, config.eos) == (None, None, [])


def broken() -> list[Any]:
    def variant(id: str, message: str, **changes: Any) -> Any:
        return pytest.param({**GOOD, **changes}, message, id=id)

    step = {"kind": "mlp", "hidden": 3}
    return [
        variant("typo", r"unknown key 'widht'; did you mean 'width'\?; known: name, ", widht=4),
        variant("nested", r"unknown key 'norm\.esp'; did you mean 'eps'", norm={"esp": 1}),
        variant(
            "block",
            r"unknown key 'blocks\.0\.repet'; did you mean 'repeat'",
            blocks=[{"repet": 2, "steps": [step]}],
        ),
        variant("no kind", r"'blocks\.0\.steps\.0\.kind' is missing$", blocks=[{"steps": [{}]}]),
        variant("no branch", r"blocks\.0\.steps\.0: List should", blocks=[{"steps": [[]]}]),
        variant(
            "in parallel",
            r"'blocks\.0\.steps\.0\.1\.kind' is missing$",
            blocks=[{"steps": [[step, {}]]}],
        ),
        variant("number", "width: Input should be greater than 0, found -4", width=-4),
        variant("long", r"vocab_size: .*found 'x{56}\.\.\.", vocab_size="x" * 99),
        variant("infinite", "logit_soft_cap: Input should be a finite", logit_soft_cap=math.inf),
        variant("NaN", r"norm\.eps: Input should be a finite number", norm={"eps": math.nan}),
        variant("dtype", "dtype: Input should be 'f32', 'bf16', 'f16' or 'f64'", dtype="float"),
        pytest.param([1], "configuration: Input should be a valid dictionary", id="list"),
    ]


@pytest.mark.parametrize(("data", "message"), broken())
def test_broken(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, json.dumps(data))
    assert str(error.value).startswith(str(tmp_path / "config.json"))


def test_a_misspelt_key_comes_before_the_missing_one() -> None:
    class Schema(Strict):
        hidden: int

    with pytest.raises(ConfigError, match=r"^here: unknown key 'hiden'; did you.*'hidden' is miss"):
        build_config(Schema, {"hiden": 3}, "here")


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ('{"a": ', ".json", "not valid JSON.*line 1"),
        ("a = ", ".toml", "not valid TOML"),
    ],
)
def test_no_json(tmp_path: Path, text: str, suffix: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text, suffix)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        read_config(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe9"}')
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        read_config(tmp_path / "latin.json")


def test_with_position_leaves_the_original_alone() -> None:
    config = tiny.config()
    other = config.with_position(Kind.model_validate({"kind": "yarn", "factor": 2.0}), 128)
    assert other.position is not None
    assert (other.position.kind, other.context_length) == ("yarn", 128)
    assert config.position is not None
    assert (config.position.kind, config.context_length) == ("rope", 64)
