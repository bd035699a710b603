"""What users of other libraries ran into with rotary encodings, where no other test covers it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.core import tiny

from seqmix import registry
from seqmix.capture import capture_model
from seqmix.config import build_config
from seqmix.errors import CheckpointError, ConfigError
from seqmix.extend import extend
from seqmix_checkpoints.rope import read_rope
from seqmix_rope.rope import Rope, RopeConfig

ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 2.0, ORIGINAL: 16}


def read(**rope: Any) -> dict[str, Any]:
    kind, _ = read_rope({"max_position_embeddings": 64, "rope_scaling": rope}, "config.json")
    return kind.options


def factor_of(options: dict[str, Any]) -> float:
    cls = registry.get("positions", "yarn")
    made: Rope = cls(build_config(cls.Config, options, "yarn"), head_dim=8)
    return made.frequencies().attention_factor


def test_an_explicit_factor_is_not_replaced_by_the_ratio_of_lengths() -> None:
    with pytest.warns(UserWarning, match="factor is 2, but"):
        found = read(**YARN)
    assert found["factor"] == 2.0
    assert found["original_context_length"] == 16


def test_a_missing_original_length_is_the_trained_one() -> None:
    with pytest.warns(UserWarning, match=f"should have {ORIGINAL}"):
        found = read(rope_type="yarn", factor=2.0)
    assert (found["factor"], found["original_context_length"]) == (2.0, 64)


@pytest.mark.filterwarnings("ignore:.*factor is 2, but")
def test_attention_factor_replaces_and_attn_factor_multiplies() -> None:
    own = 0.1 * math.log(2) + 1
    assert factor_of(read(**YARN)) == pytest.approx(own, rel=1e-15)
    assert factor_of(read(**YARN, attention_factor=0.878)) == 0.878
    assert factor_of(read(**YARN, attention_factor=1.0, mscale=2.0)) == 1.0
    assert factor_of(read(**YARN, attn_factor=0.878)) == pytest.approx(0.878 * own, rel=1e-15)
    with pytest.raises((ConfigError, CheckpointError), match="give one"):
        factor_of(read(**YARN, attention_factor=1.0, attn_factor=1.0))


def test_the_factor_on_logits_is_on_the_whole_logit_at_every_position() -> None:
    """Static scaling: position 0 is no proof, nor are rotated entries alone."""
    shared = {"factor": 40.0, "original_context_length": 64, "rotary_dim": 4, "theta": 100.0}
    deepseek = {"mscale": 1.0, "mscale_all_dim": 1.0}
    warm = {"kind": "yarn", **shared, **deepseek, "scale_softmax": True}
    plain = {"kind": "yarn", **shared, **deepseek}
    factor = (0.1 * math.log(40) + 1) ** 2
    scaled = {**tiny.ATTENTION, "scale": factor * 6**-0.5}
    made = tiny.model([tiny.ATTENTION], position=warm, dtype="f64")
    other = tiny.model([scaled], position=plain, dtype="f64")
    ids, positions = tiny.tokens(1, 30)
    torch.testing.assert_close(
        made(ids, positions)[0], other(ids, positions)[0], rtol=0, atol=1e-12
    )
    once = tiny.model([tiny.ATTENTION], position=plain, dtype="f64")
    assert (made(ids, positions)[0] - once(ids, positions)[0]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("position", "op", "per_layer"),
    [
        (tiny.ROPE, "rotary", 2),
        ({"kind": "yarn", "factor": 2.0, "original_context_length": 32}, "rotary", 2),
        ({"kind": "dynamic-yarn", "original_context_length": 32}, "rope.per_query_attention", 1),
    ],
)
def test_queries_and_keys_turn_once(position: dict[str, Any], op: str, per_layer: int) -> None:
    made = tiny.model([tiny.ATTENTION, tiny.ATTENTION], position=position)
    graph = capture_model(made).module.graph("forward")
    names = [one.name for one in graph.block.walk()]
    turning = [name for name in names if name in ("rotary", "rope.per_query_attention")]
    assert turning == [op] * (per_layer * 4)


def test_no_table_ends_anywhere() -> None:
    """The context length is no size of a table: positions beyond it are as exact as before it."""
    made = Rope(RopeConfig(theta=100.0), head_dim=4).double()
    for position in (63, 64, 10**7, 2**40):
        cos, _ = made.tables(torch.tensor([[position]]), torch.tensor([position + 1]))
        angles = position * np.array([1.0, 0.1])
        np.testing.assert_allclose(cos[0, 0], np.cos(angles), rtol=0, atol=1e-15)


def test_a_setting_cannot_be_changed_where_it_would_do_nothing() -> None:
    model = tiny.model()
    with pytest.raises(ValidationError, match="frozen"):
        model.position.config.theta = 5.0
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model.config, "position", None)  # noqa: B010  # mypy knows that it is frozen
    other = extend(model, "yarn:2")
    ids, positions = tiny.tokens(1, 30)
    assert (other(ids, positions)[0] - model(ids, positions)[0]).abs().max() > 1e-3
