"""Extending by every scaling: names of the command line, target lengths, models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import tiny

from seqmix.config import ModelConfig
from seqmix.errors import ConfigError
from seqmix.extend import extend
from seqmix.model import Model


def position(config: ModelConfig) -> dict[str, Any]:
    assert config.position is not None
    return {"kind": config.position.kind, **config.position.options}


@pytest.mark.parametrize("kind", ["linear", "ntk", "ntk-by-parts", "yarn", "llama3"])
def test_static_scalings_take_a_factor(kind: str) -> None:
    after = extend(tiny.config(), f"{kind}:2")
    assert after.context_length == 128
    found = position(after)
    assert found["factor"] == 2.0
    assert found["theta"] == 100.0
    assert found.get("original_context_length", 64) == 64
    assert Model(after).config == after


@pytest.mark.parametrize(
    "kind", ["dynamic-linear", "dynamic-ntk", "dynamic-ntk-by-parts", "dynamic-yarn"]
)
def test_dynamic_scalings_need_none(kind: str) -> None:
    for spec, length in ((kind, 128), (f"{kind}:4", 256)):
        after = extend(tiny.config(), spec)
        assert after.context_length == length
        assert position(after) == {"kind": kind, "theta": 100.0, "original_context_length": 64}
        assert Model(after).config == after


def test_none_changes_nothing() -> None:
    config = tiny.config()
    assert extend(config, "none") == config


def test_a_target_length_is_met_exactly() -> None:
    with pytest.warns(UserWarning, match="scales by 3.125 at every length.*dynamic-yarn"):
        after = extend(tiny.config(), 200)
    assert after.context_length == 200
    assert position(after)["factor"] == 200 / 64
    for target in range(65, 300, 7):
        assert extend(tiny.config(), target, method="dynamic-ntk").context_length == target


def test_a_dynamic_target_warns_of_nothing() -> None:
    after = extend(tiny.config(), 256, method="dynamic-yarn")
    assert (after.context_length, position(after)["original_context_length"]) == (256, 64)


@pytest.mark.parametrize(
    ("before", "target", "message"),
    [
        ({}, 63, "reads 64 tokens already, found a target of 63"),
        ({}, "longrope:2", "'short_factor' is missing"),
        ({}, "dynamic-yarn:x", "KIND:FACTOR"),
        ({}, "dynamic-yarn:", "KIND:FACTOR"),
        ({}, "linear", "KIND:FACTOR"),
        ({"kind": "linear", "factor": 2.0}, "yarn:2", r"extended already \('linear', factor 2"),
        (
            {"kind": "dynamic-ntk", "original_context_length": 32},
            "yarn:2",
            r"extended already \('dynamic-ntk'\)",
        ),
    ],
)
def test_what_does_not_fit(before: dict[str, Any], target: Any, message: str) -> None:
    config = tiny.config(position=before) if before else tiny.config()
    with pytest.raises(ConfigError, match=message):
        extend(config, target)


def test_an_extended_model_is_a_new_one_of_the_same_weights() -> None:
    model = tiny.model(dtype="f64")
    ids, positions = tiny.tokens(1, 9)
    before, _ = model(ids, positions)
    longer = extend(model, "yarn:2")
    assert torch.equal(model(ids, positions)[0], before)
    found, _ = longer(ids, positions)
    assert (found - before).abs().max() > 1e-3
    rebuilt = Model(extend(model.config, "yarn:2")).eval()
    rebuilt.load_state_dict(model.state_dict())
    torch.testing.assert_close(rebuilt(ids, positions)[0], found, rtol=0, atol=1e-13)
    assert longer.embed.weight is model.embed.weight
    assert longer.config.context_length == 128
