"""LM-Infinite against its definition: the mask, the ceiling, a state that does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import QUICK_BACKENDS
from tests.plugins.clipped_cases import decoded, run, stirred, written_out

from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.extend import extend
from seqmix.testing import check_mixer
from seqmix_rope.lm_infinite import LMInfinite, LMInfiniteConfig

SIZES: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 6, "theta": 100.0}
STEPS = [tiny.ATTENTION, tiny.MLP, tiny.ATTENTION]


@pytest.mark.parametrize(
    "options",
    [
        {"window": 5, "global_tokens": 3},
        {"window": 1, "global_tokens": 2},
        {"window": 6, "global_tokens": 0, "ceiling": 2, "bias": True, "output_bias": True},
        {"window": 6, "global_tokens": 4, "ceiling": 1, "rotary_dim": 4, "layout": "interleaved"},
        {"window": 3, "global_tokens": 30},
    ],
    ids=str,
)
def test_against_the_definition_written_out(options: dict[str, Any]) -> None:
    config = LMInfiniteConfig(**SIZES, **options)
    mixer = stirred(LMInfinite(config, 10))
    x = np.random.default_rng(0).normal(size=(19, 10))
    ceiling = config.ceiling or config.window

    def seen(t: int, s: int) -> bool:
        return t - s < config.window or s < config.global_tokens

    expected = written_out(mixer, config, x, seen, lambda d: min(d, ceiling))
    np.testing.assert_allclose(run(mixer, x), expected, rtol=0, atol=1e-12)


def test_laws_and_backends() -> None:
    check_mixer(
        "lm_infinite", LMInfinite.examples()[1], backends=QUICK_BACKENDS
    ).raise_for_failures()


@pytest.mark.full
def test_laws_and_backends_of_all_examples() -> None:
    check_mixer("lm_infinite", profile="full").raise_for_failures()


def test_within_the_window_it_is_rope() -> None:
    plain = tiny.model(STEPS, dtype="f64")
    ids, positions = tiny.tokens(2, 40)
    apart = extend(plain, "lm-infinite:16:3")(ids, positions)[0] - plain(ids, positions)[0]
    apart = apart.abs().amax((0, 2))
    assert apart[:17].max() < 1e-12
    assert apart[17:].max() > 1e-4


@pytest.mark.parametrize("pieces", [[1] * 40, [7, 1, 32], [39, 1], [12, 28]])
def test_any_pieces_are_the_full_forward(pieces: list[int]) -> None:
    made = extend(tiny.model(STEPS, dtype="f64"), "lm-infinite:6:3")
    ids, positions = tiny.tokens(2, 40)
    whole, _ = made(ids, positions)
    torch.testing.assert_close(decoded(made, ids, pieces), whole, rtol=0, atol=1e-10)


def test_the_state_has_the_same_size_at_any_length() -> None:
    made = extend(tiny.model(STEPS), "lm-infinite:6:3")
    for length in (1, 4, 9, 60):
        ids, positions = tiny.tokens(2, length)
        _, states = made(ids, positions)
        for state in states:
            assert state["key"].shape == (2, 1, 8, 6)
            places = state["key_positions"][0]
            kept = {p for p in range(length) if p < 3 or p >= length - 5}
            assert places.tolist() == [-1] * (8 - len(kept)) + sorted(kept)
            assert not state["key"][:, :, places < 0].any()


@pytest.mark.parametrize("where", ["left", "middle", "right"])
def test_padding_leaves_no_trace_in_the_state(where: str) -> None:
    made = extend(tiny.model(STEPS, dtype="f64"), "lm-infinite:6:3")
    ids, positions = tiny.tokens(1, 20)
    whole, after = made(ids, positions)
    padded, places = tiny.padded(ids[0], 33, where)
    found, states = made(padded, places)
    torch.testing.assert_close(found[places >= 0], whole[0], rtol=0, atol=1e-11)
    for one, other in zip(states, after, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-11)


def test_extending_by_it() -> None:
    config = extend(tiny.config(STEPS), "lm-infinite")
    first = config.branches()[0]
    assert (first.kind, first.options["window"]) == ("lm_infinite", 64)
    assert first.options["theta"] == 100.0
    assert (config.position, config.context_length) == (None, 128)
    given = extend(tiny.config(STEPS), "lm_infinite:32:4").branches()[0].options
    assert (given["window"], given["global_tokens"]) == (32, 4)
    assert extend(tiny.config(STEPS), 4096, method="lm-infinite").context_length == 4096


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'window' is missing"),
        ({"window": 4, "ceiling": 5}, "ceiling = 5 should be at most window = 4"),
        ({"window": 4, "global_tokens": -1}, "greater than or equal to 0"),
        ({"window": 4, "global": 1}, "did you mean 'global_tokens'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(LMInfiniteConfig, {**SIZES, **options}, "lm_infinite")


def test_flops_count_the_pairs_that_are_seen() -> None:
    config = LMInfiniteConfig(**SIZES, window=4, global_tokens=3)
    mixer = LMInfinite(config, 10)
    for length in (1, 4, 5, 6, 20):
        pairs = sum(t - s < 4 or s < 3 for t in range(length) for s in range(t + 1))
        expected = 2 * 2 * (length * mixer.projection_flops() + 2 * pairs * 24)
        assert mixer.flops(2, length) == expected
