"""Other mixers in some layers of a block: where they go, what the errors say, what is captured."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import tiny
from tests.mixers import ShortConv

import seqmix
from seqmix import registry
from seqmix.capture.model import capture_model
from seqmix.capture.stitch import plan_of
from seqmix.config import ModelConfig, build_config, read_config, spread_places
from seqmix.errors import ConfigError
from seqmix.families import gpt_config, neox_config
from seqmix.model import Model
from seqmix.storage import load_model, save_model
from seqmix.testing import check_model

OTHER: dict[str, Any] = {"kind": "attention", "heads": 2, "head_dim": 6}
PLAIN: dict[str, Any] = {"kind": "swiglu", "hidden": 9}


def config(repeat: int = 4, steps: Any = (PLAIN, tiny.MLP), **replacement: Any) -> ModelConfig:
    replace = [{"by": OTHER, **replacement}] if replacement else []
    block = {"repeat": repeat, "steps": list(steps), "replace": replace}
    data = {"vocab_size": 53, "width": 10, "context_length": 64, "blocks": [block]}
    return build_config(ModelConfig, data, "here")


def kinds(made: ModelConfig) -> list[list[str]]:
    return [[branch.kind for branch in step] for step in made.steps()]


@pytest.mark.parametrize(
    ("count", "layers", "places"),
    [
        (1, 1, [0]),
        (1, 2, [1]),
        (2, 4, [1, 3]),
        (1, 12, [6]),
        (3, 12, [2, 6, 10]),
        (6, 12, [1, 3, 5, 7, 9, 11]),
        (12, 12, list(range(12))),
    ],
)
def test_places_are_even(count: int, layers: int, places: list[int]) -> None:
    assert spread_places(count, layers) == places


def test_gaps_differ_by_one_at_most() -> None:
    for layers in range(1, 40):
        for count in range(1, layers + 1):
            places = spread_places(count, layers)
            assert len(set(places)) == count
            gaps = {b - a for a, b in pairwise(places)}
            assert len(gaps) <= 1 or max(gaps) - min(gaps) == 1
            before, behind = places[0], layers - 1 - places[-1]
            assert before >= behind >= before - 1 >= -1


def test_count_and_at() -> None:
    plain, other = [["swiglu"], ["mlp"]], [["attention"], ["mlp"]]
    assert kinds(config()) == plain * 4
    assert kinds(config(count=1)) == [*plain, *plain, *other, *plain]
    assert kinds(config(at=[3, 0])) == [*other, *plain, *plain, *other]
    assert kinds(config(count=4)) == other * 4
    assert kinds(config(step=1, at=[1]))[2:4] == [["swiglu"], ["attention"]]


def test_a_parallel_step_is_replaced_whole_or_branch_by_branch() -> None:
    steps = [[PLAIN, tiny.MLP]]
    assert kinds(config(2, steps, at=[1])) == [["swiglu", "mlp"], ["attention"]]
    assert kinds(config(2, steps, at=[1], branch=0))[1] == ["attention", "mlp"]
    assert kinds(config(2, steps, at=[1], branch=1))[1] == ["swiglu", "attention"]
    both = config(2, [PLAIN], at=[0], by=[OTHER, tiny.MLP])
    assert kinds(both) == [["attention", "mlp"], ["swiglu"]]


def test_several_replacements() -> None:
    replace = [
        {"by": OTHER, "count": 2},
        {"by": tiny.WINDOW, "at": [0]},
        {"step": 1, "by": PLAIN, "at": [1]},
    ]
    block = {"repeat": 4, "steps": [PLAIN, tiny.MLP], "replace": replace}
    made = tiny.config(blocks=[block])
    assert kinds(made) == [
        ["attention"], ["mlp"], ["attention"], ["swiglu"], ["swiglu"], ["mlp"], ["attention"],
        ["mlp"],
    ]  # fmt: skip
    assert made.branches()[0].options["window"] == 4


TOML = """
vocab_size = 5
width = 4
context_length = 8
[[blocks]]
repeat = 12
steps = [{kind = "hyena"}, {kind = "mlp", hidden = 3}]
replace = [{by = {kind = "attention", heads = 2, head_dim = 6}, count = 3}]
"""


def test_toml_and_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TOML, encoding="utf-8")
    made = read_config(path)
    assert [i for i, k in enumerate(made.branches()[::2]) if k.kind == "attention"] == [2, 6, 10]
    other = tmp_path / "config.json"
    other.write_text(made.to_json(), encoding="utf-8")
    assert read_config(other) == made
    assert read_config(other).steps() == made.steps()


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ({"count": 5}, r"blocks\.0: replace\.0: count = 5 is above repeat = 4; replace at most"),
        ({"at": [1, 4]}, r"replace\.0: at names \[4\], but the block's layers are 0 to 3"),
        ({"at": [1, 1]}, r"replace\.0: at names \[1\] twice; name each layer once"),
        ({"at": [-1]}, r"blocks\.0\.replace\.0\.at\.0: .*greater than or equal to 0, found -1"),
        ({"at": []}, r"blocks\.0\.replace\.0\.at: List should have at least 1 item"),
        ({"count": 0}, r"blocks\.0\.replace\.0\.count: .*greater than 0, found 0"),
        ({"count": 1, "at": [0]}, "count = 1 and at = .0. both say which layers; give one"),
        ({"step": 1}, r"blocks\.0\.replace\.0: says nothing of where: give 'count', to spread"),
        ({"step": 2, "count": 1}, r"step = 2, but the block's steps are 0 to 1"),
        ({"branch": 1, "count": 1}, r"branch = 1, but the branches of step 0 are 0 to 0"),
        ({"branch": -1, "count": 1}, r"replace\.0\.branch: .*greater than or equal to 0"),
        ({"branch": 0, "by": [OTHER, PLAIN], "count": 1}, "branch = 0 is replaced by 2 branches"),
        ({"cuont": 1}, r"unknown key 'blocks\.0\.replace\.0\.cuont'; did you mean 'count'"),
        ({"count": 1, "by": {}}, r"'blocks\.0\.replace\.0\.by\.kind' is missing"),
    ],
)
def test_what_does_not_fit(replacement: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        config(**replacement)
    assert str(error.value).startswith("here: ")


def test_two_replacements_of_one_place() -> None:
    replace = [{"by": OTHER, "count": 2}, {"by": PLAIN, "branch": 0, "at": [3]}]
    block = {"repeat": 4, "steps": [[PLAIN, tiny.MLP]], "replace": replace}
    with pytest.raises(ConfigError, match=r"replace\.1: replaces step 0 of layer 3, as replace\.0"):
        build_config(ModelConfig, {**config().model_dump(), "blocks": [block]}, "here")


def test_one_trace_per_structure_and_the_same_results(tmp_path: Path) -> None:
    block = {"repeat": 6, "steps": [tiny.WINDOW, tiny.MLP], "replace": [{"by": OTHER, "count": 2}]}
    model = tiny.model(blocks=[block])
    assert len(plan_of(model).templates) == 3
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model").eval()
    ids, positions = tiny.tokens(2, 9)
    assert torch.equal(again(ids, positions)[0], model(ids, positions)[0])
    made = {"reference": seqmix.compile(model, "reference", cache=False)}
    check_model(model, made, (1, 7)).raise_for_failures()


def test_no_layer_is_traced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where mixers move padding out of the way, which the context remembers."""
    monkeypatch.setattr("seqmix.capture.model._whole", lambda *_: pytest.fail("traced whole"))
    with registry.register_local("mixers", "short_conv", ShortConv):
        replace = [{"by": OTHER, "count": 1}]
        block = {"repeat": 4, "steps": [{"kind": "short_conv"}], "replace": replace}
        capture_model(tiny.model(blocks=[block], position=None))


def test_gpt_puts_the_mixers_where_it_is_told() -> None:
    made = gpt_config(53, 10, 4, mixer=PLAIN, replace={"by": OTHER, "count": 2})
    assert [step[0].kind for step in made.steps()[::2]] == ["swiglu", "attention"] * 2
    assert made.branches()[1].options == {"hidden": 40, "activation": "gelu_tanh"}
    assert (made.position.kind, made.position.options) == ("learned", {"max_positions": 1024})
    assert (made.norm.kind, made.tie_embeddings) == ("layer", True)
    turns = gpt_config(53, 10, 5, mixer=[PLAIN, OTHER, tiny.WINDOW], mlp=None, position="none")
    assert [k.kind for k in turns.branches()] == [
        "swiglu", "attention", "attention", "swiglu", "attention",
    ]  # fmt: skip
    assert turns.branches()[2].options["window"] == 4
    assert turns.position is None


def test_neox_is_parallel() -> None:
    made = neox_config(
        53, 10, 2, mixer=OTHER, head_dim=6, rotary_dim=2, replace={"by": PLAIN, "at": [0]}
    )
    assert kinds(made) == [["swiglu", "mlp"], ["attention", "mlp"]]
    assert made.position.options == {"rotary_dim": 2}
    assert not made.tie_embeddings
    ids, positions = tiny.tokens(2, 5)
    assert Model(made)(ids, positions)[0].shape == (2, 5, 53)
    bare = neox_config(53, 10, 1, mixer=PLAIN, mlp={"kind": "swiglu", "hidden": 3})
    assert bare.position is None
    assert bare.branches()[1].options["hidden"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "model 'gpt': layers = 0; expected at least 1"),
        ({"mixer": []}, "mixer is an empty list"),
        ({"mixer": "attention"}, "mixer should be a mapping of options, .* found 'attention'"),
        ({"replace": [None]}, r"replace should be a mapping of options, .* found \[None\]"),
        ({"mixer": [PLAIN, OTHER, PLAIN]}, "mixer lists 3 for 2 layers"),
        ({"mixer": [PLAIN, OTHER], "replace": {"by": OTHER, "count": 1}}, "replace says what"),
        ({"replace": {"by": OTHER, "count": 3}}, r"model 'gpt': .*count = 3 is above repeat = 2"),
        ({"norm": {"kind": "batch"}}, "model 'gpt': norm.kind: Input should be 'rms' or 'layer'"),
    ],
)
def test_families_refuse(changes: dict[str, Any], message: str) -> None:
    given = {"vocab_size": 53, "width": 10, "layers": 2, "mixer": PLAIN, **changes}
    with pytest.raises(ConfigError, match=message):
        gpt_config(**given)


def test_rotary_dim_alone_says_too_little() -> None:
    with pytest.raises(ConfigError, match="rotary_dim = 4 without head_dim"):
        neox_config(53, 10, 2, mixer=OTHER, rotary_dim=4)


def test_a_name_of_an_encoding_needs_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="position encoding 'rope' needs 'head_dim'"):
        Model(gpt_config(53, 10, 2, mixer=OTHER, position="rope"))
