"""Configurations and arguments of a model that do not fit. Every situation gets a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.core import tiny
from tests.golden.errors.messages import Situations

from seqmix.config import read_config
from seqmix.model import Model
from seqmix.state import StateSpec

__all__ = ["ARGUMENT", "CONFIG"]

CONFIG, ARGUMENT = Situations("config"), Situations("argument")
GOOD: dict[str, Any] = {
    "vocab_size": 5,
    "width": 4,
    "context_length": 8,
    "blocks": [{"steps": [{"kind": "mlp", "hidden": 3}]}],
}


def read(folder: Path, text: str | None = None, **changes: Any) -> Model:
    path = folder / "config.json"
    path.write_text(json.dumps({**GOOD, **changes}) if text is None else text, encoding="utf-8")
    return Model(read_config(path))


def with_step(folder: Path, **step: Any) -> Model:
    return read(folder, blocks=[{"steps": [step]}])


@CONFIG
def unknown_key(folder: Path) -> None:
    read(folder, widht=4)


@CONFIG
def unknown_key_in_a_block(folder: Path) -> None:
    read(folder, blocks=[*GOOD["blocks"], {"repet": 2, **GOOD["blocks"][0]}])


@CONFIG
def unknown_key_of_a_mixer(folder: Path) -> None:
    with_step(folder, kind="mlp", hiden=3)


@CONFIG
def wrong_type(folder: Path) -> None:
    read(folder, norm={"eps": "small"})


@CONFIG
def wrong_type_of_a_mixer_option(folder: Path) -> None:
    with_step(folder, kind="mlp", hidden="three")


@CONFIG
def out_of_range(folder: Path) -> None:
    read(folder, width=-4)


@CONFIG
def out_of_range_in_a_mixer(folder: Path) -> None:
    with_step(folder, kind="swiglu", hidden=0)


@CONFIG
def none_of_the_choices(folder: Path) -> None:
    read(folder, dtype="float")


@CONFIG
def missing_key(folder: Path) -> None:
    read(folder, '{"width": 4, "context_length": 8, "blocks": []}')


@CONFIG
def step_without_a_kind(folder: Path) -> None:
    with_step(folder, hidden=3)


@CONFIG
def several_at_once(folder: Path) -> None:
    read(folder, width=0, vocab="many", norm={"kind": "group"})


@CONFIG
def head_dim_is_missing(folder: Path) -> None:
    read(folder, position={"kind": "rope"})


@CONFIG
def head_dim_of_another_size(folder: Path) -> None:
    attention = {"kind": "attention", "heads": 1, "head_dim": 4}
    read(folder, position={"kind": "rope"}, head_dim=2, blocks=[{"steps": [attention]}])


@CONFIG
def heads_that_do_not_share(folder: Path) -> None:
    with_step(folder, kind="attention", heads=3, kv_heads=2, head_dim=4)


@CONFIG
def broken_json(folder: Path) -> None:
    read(folder, '{"width": 4,\n "context_length"}')


@CONFIG
def broken_toml(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_text("width = 4\ncontext_length = \n", encoding="utf-8")
    read_config(path)


@CONFIG
def missing_file(folder: Path) -> None:
    read_config(folder / "nowhere.json")


@CONFIG
def state_without_a_batch(folder: Path) -> None:
    StateSpec(("P", 3))


@CONFIG
def state_with_an_unknown_axis(folder: Path) -> None:
    StateSpec(("B", "S", 3))


def call(**changes: Any) -> None:
    """A model of two attention layers with a window, called after three tokens."""
    model = tiny.model()
    ids, positions = tiny.tokens(2, 3)
    _, states = model(ids, positions)
    given = {"input_ids": ids, "positions": positions + 3, "states": states}
    model(**{**given, **{k: v(given[k]) for k, v in changes.items()}})


def changed(layer: int, key: str, change: Any) -> Any:
    """A function of states that changes one tensor."""

    def apply(states: Any) -> Any:
        states[layer] = {**states[layer], key: change(states[layer][key])}
        return states

    return apply


@ARGUMENT
def dtype_of_the_ids(folder: Path) -> None:
    call(input_ids=lambda ids: ids.int())


@ARGUMENT
def positions_of_another_length(folder: Path) -> None:
    call(positions=lambda positions: positions[:, :2])


@ARGUMENT
def id_beyond_the_vocabulary(folder: Path) -> None:
    call(input_ids=lambda ids: ids + tiny.VOCAB)


@ARGUMENT
def number_of_states(folder: Path) -> None:
    call(states=lambda states: states[:2])


@ARGUMENT
def missing_state(folder: Path) -> None:
    call(states=lambda states: [{"key": states[0]["key"]}, *states[1:]])


@ARGUMENT
def shape_of_a_state(folder: Path) -> None:
    call(states=changed(1, "value", lambda v: v[..., :4]))


@ARGUMENT
def pasts_of_two_lengths(folder: Path) -> None:
    call(states=changed(2, "key", lambda k: torch.cat([k, k], 2)))


@ARGUMENT
def batch_of_a_state(folder: Path) -> None:
    call(states=changed(0, "key", lambda k: k[:1]))
