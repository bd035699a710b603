"""Recall rows: the peer's bit for bit, what each task promises, and sizes that do not fit."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqmix.config import Strict, build_config
from seqmix.errors import ConfigError
from seqmix.training.rows import IGNORED, ArrayRows
from seqmix_recall.draws import BLOCK, distinct, power_law, weighted_distinct
from seqmix_recall.queries import compositional_rows, forgetting_rows, mqar_rows
from seqmix_recall.settings import (
    AssociativeSettings,
    CompositionalSettings,
    ForgettingSettings,
    InductionSettings,
    MQARSettings,
)
from seqmix_recall.single import associative_rows, induction_rows

GOLDEN = Path(__file__).parents[1] / "golden" / "zoology"
SMALL = {"vocab_size": 24, "length": 32, "filler": "random"}
MAKERS: list[tuple[Callable[..., ArrayRows], Strict]] = [
    (mqar_rows, MQARSettings(**SMALL)),
    (mqar_rows, MQARSettings(**SMALL, generator="zoology")),
    (forgetting_rows, ForgettingSettings(**SMALL)),
    (forgetting_rows, ForgettingSettings(**SMALL, generator="zoology")),
    (compositional_rows, CompositionalSettings(**SMALL)),
    (associative_rows, AssociativeSettings(vocab_size=24, length=33)),
    (induction_rows, InductionSettings(vocab_size=24, length=33)),
]
NAMES = [f"{make.__name__}-{getattr(s, 'generator', 'fast')}" for make, s in MAKERS]


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return stored["inputs"], stored["labels"]


@pytest.mark.parametrize(
    ("name", "rows", "seed", "options"),
    [
        ("mqar_v64_l32_kv4", 8, 0, {"vocab_size": 64, "length": 32}),
        (
            "mqar_v256_l64_kv8_a0p1",
            8,
            7,
            {"vocab_size": 256, "length": 64, "pairs": 8, "power": 0.1},
        ),
    ],
)
def test_mqar_of_the_peer(name: str, rows: int, seed: int, options: dict) -> None:
    made = mqar_rows(MQARSettings(generator="zoology", **options), rows, seed)
    inputs, labels = golden(name)
    np.testing.assert_array_equal(made.inputs, inputs)
    np.testing.assert_array_equal(made.targets, labels)


def test_forgetting_of_the_peer() -> None:
    settings = ForgettingSettings(generator="zoology", vocab_size=64, length=40)
    made = forgetting_rows(settings, 6, 3)
    inputs, labels = golden("mqar_forgetting")
    np.testing.assert_array_equal(made.inputs, inputs)
    np.testing.assert_array_equal(made.targets, labels)


@pytest.mark.parametrize(("make", "settings"), MAKERS, ids=NAMES)
def test_same_seed_same_bytes_whatever_the_global_generators(
    make: Callable[..., ArrayRows], settings: Strict
) -> None:
    first = make(settings, 50, 3)
    np.random.seed(99)
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    second, other = make(settings, 50, 3), make(settings, 50, 4)
    assert first.inputs.tobytes() == second.inputs.tobytes()
    assert first.targets.tobytes() == second.targets.tobytes()
    assert not np.array_equal(first.inputs, other.inputs)
    after = np.random.get_state(legacy=False)["state"]["key"]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("generator", ["fast", "zoology"])
def test_every_key_is_asked_once_and_its_value_is_in_the_context(
    generator: str, passes: int
) -> None:
    settings = MQARSettings(
        vocab_size=40, length=48, pairs=5, passes=passes, generator=generator, filler="random"
    )
    made = mqar_rows(settings, 300, 1)
    for tokens, targets in zip(made.inputs, made.targets, strict=True):
        context = tokens[: 10 * passes].reshape(passes, 5, 2)
        assert (context == context[0]).all()
        values: dict[int, int] = dict(context[0].tolist())
        assert len(values) == len(set(values.values())) == 5
        asked = np.flatnonzero(targets != IGNORED)
        assert asked.min() >= 10 * passes
        assert {int(tokens[i]): int(targets[i]) for i in asked} == values
        # No filler is a key: each occurs as often as the context and its query show it.
        assert all((tokens == key).sum() == passes + 1 for key in values)


def test_the_last_value_counts_and_differs_from_the_first() -> None:
    made = forgetting_rows(ForgettingSettings(vocab_size=12, length=40, updates=3), 400, 0)
    for tokens, targets in zip(made.inputs, made.targets, strict=True):
        pairs = tokens[:14].reshape(7, 2).tolist()
        first, latest = dict(pairs[:4]), dict(pairs)
        assert sum(first[key] != latest[key] for key in first) == 3
        asked = np.flatnonzero(targets != IGNORED)
        assert {int(tokens[i]): int(targets[i]) for i in asked} == latest


def test_neither_part_of_a_key_tells_the_value() -> None:
    settings = CompositionalSettings(vocab_size=40, length=60, pairs=9)
    made = compositional_rows(settings, 200, 0)
    for tokens, targets in zip(made.inputs, made.targets, strict=True):
        triples = tokens[:27].reshape(9, 3)
        assert len(set(triples[:, 0])) == len(set(triples[:, 1])) == 3
        values = {(a, b): v for a, b, v in triples.tolist()}
        assert len(values) == 9
        asked = np.flatnonzero(targets != IGNORED)
        found = {(int(tokens[i - 1]), int(tokens[i])): int(targets[i]) for i in asked}
        assert found == values


def test_associative_recall_asks_for_a_key_that_was_shown() -> None:
    made = associative_rows(AssociativeSettings(vocab_size=20, length=13, keys=4), 300, 0)
    assert (made.targets[:, :-1] == IGNORED).all()
    for tokens, targets in zip(made.inputs, made.targets, strict=True):
        pairs = tokens[:-1].reshape(6, 2).tolist()
        values: dict[int, int] = dict(pairs)
        assert all(values[key] == value for key, value in pairs)
        assert targets[-1] == values[int(tokens[-1])]


def test_induction_heads_ask_for_what_followed_the_special_token() -> None:
    made = induction_rows(InductionSettings(vocab_size=9, length=7), 500, 0)
    special = made.inputs == 8
    assert (special.sum(axis=1) == 2).all()
    assert special[:, -1].all()
    places = special.argmax(axis=1)
    assert set(places) == set(range(5))
    np.testing.assert_array_equal(made.targets[:, -1], made.inputs[np.arange(500), places + 1])


def test_a_hundred_thousand_rows_take_seconds_and_little_memory() -> None:
    settings = MQARSettings(vocab_size=8192, length=64, filler="random")
    rows = 4 * BLOCK
    tracemalloc.start()
    started = time.process_time()
    made = mqar_rows(settings, rows, 0)
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(made) == rows
    share = rows / 100_000
    assert seconds < 30 * share
    # What grows with the rows, and the blocks that pass by.
    assert peak < 1e9 * share + 6e7


def test_more_rows_begin_with_the_fewer() -> None:
    settings = MQARSettings(vocab_size=24, length=20)
    few, many = mqar_rows(settings, 10, 0), mqar_rows(settings, BLOCK + 10, 0)
    np.testing.assert_array_equal(few.inputs, many.inputs[:10])
    assert not np.array_equal(many.inputs[BLOCK:], many.inputs[:10])


@pytest.mark.parametrize(("count", "choices"), [(3, 4), (2, 9)])
def test_distinct_draws_are_uniform(count: int, choices: int) -> None:
    drawn = distinct(np.random.default_rng(0), 20_000, count, choices)
    assert all(len(set(row)) == count for row in drawn[:500].tolist())
    for column in drawn.T:
        counts = np.bincount(column, minlength=choices)
        assert abs(counts / 20_000 - 1 / choices).max() < 0.015


def test_places_follow_the_power_law() -> None:
    weights = power_law(6, 0.3)
    drawn = weighted_distinct(np.random.default_rng(0), 20_000, 2, weights)
    first = np.bincount(drawn[:, 0], minlength=6) / 20_000
    np.testing.assert_allclose(first, weights, atol=0.012)
    # After slot 0 the others share what is left in proportion.
    second = np.bincount(drawn[drawn[:, 0] == 0, 1], minlength=6)
    np.testing.assert_allclose(
        second[1:] / second.sum(), weights[1:] / weights[1:].sum(), atol=0.02
    )


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (MQARSettings, {"length": 15}, "need 16; make it longer"),
        (MQARSettings, {"length": 16, "passes": 2}, "need 24"),
        (MQARSettings, {"vocab_size": 9}, "has 3 keys and 5 values, fewer than the 4"),
        (MQARSettings, {"pairs": 0}, "greater than 0"),
        (MQARSettings, {"power": 0}, "greater than 0"),
        (MQARSettings, {"power_a": 1}, "unknown key 'power_a'"),
        (MQARSettings, {"test_seed": 0}, "the tests would be trained"),
        (ForgettingSettings, {"updates": 5}, "updates = 5 exceeds pairs = 4"),
        (ForgettingSettings, {"length": 19}, "need 20"),
        (CompositionalSettings, {"pairs": 5}, "should be a square"),
        (CompositionalSettings, {"vocab_size": 8}, "make it larger"),
        (AssociativeSettings, {"length": 8}, "should be odd"),
        (AssociativeSettings, {"length": 9, "vocab_size": 8}, "has 3 keys and 4 values"),
        (InductionSettings, {"length": 2}, "at least 3"),
        (InductionSettings, {"vocab_size": 1}, "at least 2"),
    ],
)
def test_sizes_that_do_not_fit(schema: type[Strict], options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_config(schema, options, "task")


def test_the_smallest_sizes_that_fit() -> None:
    made = mqar_rows(MQARSettings(vocab_size=10, length=16, filler="random"), 20, 0)
    assert (made.targets != IGNORED).sum() == 80
    assert made.inputs.max() < 10
    assert mqar_rows(MQARSettings(vocab_size=4, length=4, pairs=1), 1, 0).inputs[0, 0] == 1
