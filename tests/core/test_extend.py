"""Extending a context: what is kept, what is set, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import tiny

from seqmix.config import ModelConfig
from seqmix.errors import ConfigError, PluginError
from seqmix.extend import extend
from seqmix.model import Model


def test_yarn_keeps_the_options_of_rope() -> None:
    before = tiny.config(position={**tiny.ROPE, "layout": "interleaved"}, context_length=63)
    after = extend(before, "yarn:2.5")
    assert after.position is not None
    assert after.position.kind == "yarn"
    assert after.position.options == {
        "theta": 100.0, "layout": "interleaved", "factor": 2.5, "original_context_length": 63,
    }  # fmt: skip
    assert after.context_length == 157
    assert before.context_length == 63
    assert Model(after).config == ModelConfig.model_validate_json(after.to_json())


def test_a_factor_of_one_is_allowed() -> None:
    assert extend(tiny.config(), "yarn:1").context_length == 64


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("yarn", "'yarn' should read KIND:FACTOR, such as yarn:2"),
        ("yarn:two", "'yarn:two' should read KIND:FACTOR"),
        ("yarn:0.5", "the factor should be at least 1, found 0.5"),
        ("yarn:nan", "the factor should be"),
        ("yarn:inf", "the factor should be"),
        ("rope:2", "position encoding 'rope' takes no factor"),
    ],
)
def test_specs_that_do_not_fit(spec: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        extend(tiny.config(), spec)
    assert expected in str(caught.value)


def test_unknown_encodings_suggest_near_ones() -> None:
    with pytest.raises(PluginError, match="no position 'yarm'; did you mean 'yarn'"):
        extend(tiny.config(), "yarm:2")


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (None, "has no position encoding that could be extended"),
        (
            {"kind": "yarn", "factor": 2.0, "original_context_length": 32},
            "is extended already ('yarn', factor 2.0); start from the original one",
        ),
    ],
)
def test_models_that_cannot_be_extended(position: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        extend(tiny.config(position=position), "yarn:2")
    assert expected in str(caught.value)


def test_none_leaves_a_model_with_a_learned_encoding_as_it_is() -> None:
    model = Model(tiny.config(position={"kind": "learned", "max_positions": 20}, head_dim=None))
    other = extend(model, "none")
    assert other is not model
    ids, positions = tiny.tokens(1, 9)
    assert torch.equal(other(ids, positions)[0], model(ids, positions)[0])
