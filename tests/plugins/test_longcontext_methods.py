"""Encodings by name: what they change, and what is wrong with a name."""

from __future__ import annotations

import pytest
import torch
from tests.plugins import longcontext_cases as cases

from seqmix.errors import ConfigError, PluginError
from seqmix_longcontext.methods import parse_method, parse_methods


def test_options_replace_those_of_the_encoding() -> None:
    config = parse_method("yarn:2+attention_factor=1.5+ramp=turns").config(cases.config())
    assert config.position is not None
    assert config.position.kind == "yarn"
    assert config.position.options == {
        "theta": 50.0, "factor": 2.0, "original_context_length": 32,
        "attention_factor": 1.5, "ramp": "turns",
    }  # fmt: skip
    assert config.context_length == 64


def test_none_keeps_the_encoding_and_takes_options() -> None:
    assert parse_method("none").config(cases.config()) == cases.config()
    other = parse_method("none+theta=99").config(cases.config())
    assert other.position is not None
    assert other.position.options["theta"] == 99


def test_a_model_shares_its_weights_and_changes_its_encoding() -> None:
    model = cases.model()
    other = parse_method("yarn:2+attention_factor=1.5").apply(model)
    assert other.embed.weight is model.embed.weight
    ids, positions = torch.tensor([cases.ids(9)]), torch.arange(9).unsqueeze(0)
    plain, scaled = model(ids, positions)[0], other(ids, positions)[0]
    own = parse_method("yarn:2").apply(model)(ids, positions)[0]
    assert scaled.dtype == torch.float64
    assert (scaled - plain).abs().max() > 1e-3
    assert (scaled - own).abs().max() > 1e-3


def test_lists() -> None:
    methods = parse_methods("none, yarn:2,dynamic-yarn+granularity=4", cases.config())
    assert [m.name for m in methods] == ["none", "yarn:2", "dynamic-yarn+granularity=4"]
    assert methods[2].options == {"granularity": 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yarn", "'yarn' should read KIND:FACTOR"),
        ("none,", "names no encoding"),
        ("yarn:2+", "'' in 'yarn:2+' is no option; write KIND[:FACTOR][+option=value]"),
        ("yarn:2+truncate", "'truncate' in 'yarn:2+truncate' is no option"),
        ("yarn:2+truncat=1", "unknown key 'truncat'; did you mean 'truncate'?"),
        ("yarn:2+beta_fast=high", "beta_fast"),
        ("none,yarn:2,none", "none is there more than once"),
    ],
)
def test_names_that_do_not_fit(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_methods(text, cases.config())
    assert expected in str(caught.value)


def test_unknown_encodings_suggest_near_ones() -> None:
    with pytest.raises(PluginError, match="did you mean 'yarn'"):
        parse_methods("yarm:2", cases.config())


def test_options_without_an_encoding() -> None:
    with pytest.raises(ConfigError, match="has no position encoding"):
        parse_methods("none+theta=3", cases.config(position=None))


def test_options_of_learned_weights_stay() -> None:
    learned = {"kind": "learned", "max_positions": 40}
    model = cases.model(position=learned, head_dim=None)
    assert parse_method("none").apply(model) is model
    with pytest.raises(ConfigError, match="was learned with its options"):
        parse_method("none+max_positions=50").apply(model)
