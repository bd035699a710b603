"""Every scaling against its golden frequencies and transformers, and what each refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqmix import registry
from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix_rope.rope import Rope
from seqmix_rope.scaling import rope_frequencies

GOLDEN = Path(__file__).parent.parent / "golden" / "rope" / "rope.json"
# The golden values have 15 digits.
DIGITS = 1e-12


def encoding(kind: str, head_dim: int, **options: Any) -> Rope:
    cls = registry.get("positions", kind)
    made = cls(build_config(cls.Config, options, kind), head_dim=head_dim)
    assert isinstance(made, Rope)
    return made


def golden() -> list[Any]:
    return [
        pytest.param(c, id=c["name"])
        for c in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    ]


def of_case(case: Any) -> tuple[Rope, int]:
    """The encoding of a golden case, and the length it was computed for."""
    head_dim, length = case["head_dim"], case.get("seq_len") or 1
    if case.get("extra"):
        kind, _, rest = case["name"].partition("_")
        shared = {"theta": case["theta"]}
        if kind == "ntk":
            return encoding("ntk", head_dim, factor=case["s"], **shared), length
        method = {"pi": "dynamic-linear", "yarn": "dynamic-yarn"}[rest.split("_")[0]]
        return encoding(method, head_dim, original_context_length=case["L"], **shared), length
    given = dict(case["rope_parameters"])
    kind, original = given.pop("rope_type"), given.pop("original_max_position_embeddings", None)
    part = given.pop("partial_rotary_factor", 1.0)
    options = {"theta": given.pop("rope_theta"), "rotary_dim": int(head_dim * part), **given}
    if original is not None:
        options["original_context_length"] = original
    if kind == "dynamic":
        options["rate"] = options.pop("factor")
        options["original_context_length"] = case["max_position_embeddings"]
    if kind == "longrope" and "factor" not in options:
        options["factor"] = case["max_position_embeddings"] / original
    names = {"default": "rope", "dynamic": "dynamic-ntk"}
    return encoding(names.get(kind, kind), head_dim, **options), length


@pytest.mark.parametrize("case", golden())
def test_frequencies_equal_the_golden_ones(case: Any) -> None:
    made, length = of_case(case)
    found = made.frequencies(length)
    assert found.inv_freq.dtype == np.float64
    np.testing.assert_allclose(found.inv_freq, case["inv_freq64"], rtol=DIGITS, atol=0)
    assert found.attention_factor == pytest.approx(case["attention_factor"], rel=1e-14)


@pytest.mark.parametrize("case", golden())
def test_tables_are_the_rounded_angles(case: Any) -> None:
    made, length = of_case(case)
    if hasattr(made, "per_query") and made.per_query:
        made = type(made)(made.config.model_copy(update={"mode": "per_window"}), case["head_dim"])
    position = min(length, 5000) - 1
    cos, sin = made.tables(torch.tensor([[position]]), torch.tensor([length]))
    angles = position * np.array(case["inv_freq64"], dtype=np.longdouble)
    for found, wanted in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        error = np.abs(found[0, 0].numpy() - case["attention_factor"] * wanted).max()
        assert error < 1e-6


HF_TYPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": ("linear", {"factor": 3.0}, {"factor": 3.0}),
    "llama3": (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {"factor": 8.0, "original_context_length": 512},
    ),
    "yarn": (
        "yarn",
        {
            "factor": 3.0,
            "original_max_position_embeddings": 512,
            "mscale": 0.9,
            "mscale_all_dim": 0.4,
            "beta_fast": 20.0,
            "truncate": False,
        },
        {
            "factor": 3.0,
            "original_context_length": 512,
            "mscale": 0.9,
            "mscale_all_dim": 0.4,
            "beta_fast": 20.0,
            "truncate": False,
        },
    ),
    "dynamic": (
        "dynamic-ntk",
        {"factor": 2.0},
        {"rate": 2.0, "original_context_length": 2048},
    ),
    "longrope": (
        "longrope",
        {
            "original_max_position_embeddings": 512,
            "short_factor": [1.0 + i / 16 for i in range(16)],
            "long_factor": [1.0 + i for i in range(16)],
            "factor": 4.0,
        },
        {
            "original_context_length": 512,
            "short_factor": [1.0 + i / 16 for i in range(16)],
            "long_factor": [1.0 + i for i in range(16)],
            "factor": 4.0,
        },
    ),
    "proportional": (
        "proportional",
        {"partial_rotary_factor": 0.3, "factor": 2.0},
        {"part": 0.3, "factor": 2.0},
    ),
}


@pytest.mark.parametrize("length", [1, 512, 513, 2048, 6000])
@pytest.mark.parametrize("name", HF_TYPES)
def test_the_same_as_transformers(name: str, length: int) -> None:
    """Its tables are float32, so they are as near as float32 is."""
    rope_utils = pytest.importorskip(
        "transformers.modeling_rope_utils", reason="compares with transformers"
    )
    from transformers import LlamaConfig

    kind, theirs, ours = HF_TYPES[name]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": name, "rope_theta": 1e4, **theirs},
    )
    inv_freq, factor = rope_utils.ROPE_INIT_FUNCTIONS[name](config, "cpu", seq_len=length)
    found = encoding(kind, 32, **ours).frequencies(length)
    np.testing.assert_allclose(found.inv_freq, inv_freq.numpy(), rtol=1e-6)
    assert found.attention_factor == pytest.approx(factor, rel=1e-12)


def test_llama3_is_the_ramp_of_the_paper() -> None:
    shared = {"factor": 32.0, "original_context_length": 8192, "theta": 5e5}
    one = encoding("llama3", 64, **shared, low_freq_factor=1.0, high_freq_factor=4.0)
    other = encoding("ntk-by-parts", 64, **shared, ramp="turns", beta_slow=1.0, beta_fast=4.0)
    np.testing.assert_allclose(one.frequencies().inv_freq, other.frequencies().inv_freq, rtol=1e-14)


def test_the_two_ramps_differ_by_two_thirds() -> None:
    shared = {"factor": 16.0, "original_context_length": 4096}
    pairs = encoding("ntk-by-parts", 128, **shared).frequencies().inv_freq
    turns = encoding("ntk-by-parts", 128, ramp="turns", **shared).frequencies().inv_freq
    apart = np.abs(pairs / turns - 1)
    assert 0.5 < apart.max() < 2.1
    plain = rope_frequencies(128, 1e4).inv_freq
    for found in (pairs, turns):
        np.testing.assert_array_equal(found[:16], plain[:16])
        np.testing.assert_allclose(found[-10:], plain[-10:] / 16, rtol=1e-14)


def test_ramp_over_turns_written_out() -> None:
    found = encoding(
        "ntk-by-parts", 16, ramp="turns", factor=4.0, original_context_length=512, theta=100.0
    ).frequencies()
    for i, value in enumerate(found.inv_freq):
        theta = 100.0 ** (-2 * i / 16)
        turns = 512 * theta / (2 * math.pi)
        kept = min(max((turns - 1) / (32 - 1), 0.0), 1.0)
        assert value == pytest.approx((1 - kept) * theta / 4 + kept * theta, rel=1e-13)


def test_yarn_has_the_frequencies_of_its_parts() -> None:
    shared = {"factor": 8.0, "original_context_length": 1024, "ramp": "turns"}
    yarn, parts = (encoding(kind, 32, **shared).frequencies() for kind in ("yarn", "ntk-by-parts"))
    np.testing.assert_array_equal(yarn.inv_freq, parts.inv_freq)
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(8) + 1)
    assert parts.attention_factor == 1.0


@pytest.mark.parametrize("head_dim", [2, 4, 64])
def test_ntk_keeps_the_first_pair_and_divides_the_last(head_dim: int) -> None:
    found = encoding("ntk", head_dim, factor=5.0).frequencies().inv_freq
    plain = rope_frequencies(head_dim, 1e4).inv_freq
    assert found[0] == plain[0]
    if head_dim > 2:
        assert found[-1] == pytest.approx(plain[-1] / 5, rel=1e-14)
        base = 1e4 * 5 ** (head_dim / (head_dim - 2))
        np.testing.assert_allclose(found, rope_frequencies(head_dim, base).inv_freq, rtol=1e-13)


def test_longrope_switches_beyond_the_original_length() -> None:
    lists = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    made = encoding("longrope", 4, original_context_length=16, factor=4.0, **lists)
    plain = rope_frequencies(4, 1e4).inv_freq
    for length, divisors in ((1, [1.0, 2.0]), (16, [1.0, 2.0]), (17, [3.0, 4.0])):
        np.testing.assert_allclose(made.frequencies(length).inv_freq, plain / np.array(divisors))
    factor = made.frequencies(3).attention_factor
    assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)), rel=1e-15)
    assert made.frequencies(99).attention_factor == factor
    assert not made.caches_rotated_keys


def test_one_list_for_all_lengths_keeps_rotated_keys() -> None:
    lists = {"short_factor": [3.0, 4.0], "long_factor": [3.0, 4.0]}
    made = encoding("longrope", 4, original_context_length=16, **lists)
    assert made.caches_rotated_keys
    assert made.splits
    assert not made.attends
    tables = made.tables(torch.tensor([[3, 40]]), torch.tensor([41]))
    angles = np.array([[3.0], [40.0]]) * made.frequencies().inv_freq
    np.testing.assert_allclose(tables[0][0], np.cos(angles), atol=1e-7)


def test_proportional_pairs_the_whole_head() -> None:
    made = encoding("proportional", 16, part=0.25, factor=2.0, theta=100.0)
    found = made.frequencies().inv_freq
    np.testing.assert_allclose(found[:2], [0.5, 0.5 * 100.0 ** (-2 / 16)])
    assert not found[2:].any()
    x = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    y = made.rotate(x, torch.tensor([[9]]), torch.tensor([10]), "key")
    still = [2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15]
    assert torch.equal(y[..., still], x[..., still])
    assert not torch.isclose(y[..., [0, 1, 8, 9]], x[..., [0, 1, 8, 9]]).any()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("linear", {}, "'factor' is missing"),
        ("ntk", {"factor": 0}, "greater than 0"),
        ("ntk-by-parts", {"factor": 2}, "'original_context_length' is missing"),
        ("ntk-by-parts", {"factor": 2, "original_context_length": 8, "ramp": "log"}, "'pairs'"),
        (
            "yarn",
            {"factor": 2, "original_context_length": 8, "ramp": "turns", "beta_slow": 32},
            "two ends",
        ),
        (
            "llama3",
            {"factor": 2, "original_context_length": 8, "high_freq_factor": 1},
            "should be above low_freq_factor = 1.0",
        ),
        ("llama3", {"factor": 2}, "'original_context_length' is missing"),
        ("longrope", {"original_context_length": 8}, "'short_factor' is missing"),
        ("proportional", {"rotary_dim": 4}, "this one has part"),
        ("proportional", {"part": 1.5}, "less than or equal to 1"),
        ("dynamic-yarn", {}, "'original_context_length' is missing"),
        ("dynamic-ntk", {"original_context_length": 8, "factor": 2}, "unknown key 'factor'"),
        ("dynamic-ntk", {"original_context_length": 8, "mode": "both"}, "'per_query'"),
        ("dynamic-ntk", {"original_context_length": 8, "granularity": 0}, "greater than 0"),
        ("dynamic-linear", {"original_context_length": 8, "rate": 0}, "greater than 0"),
    ],
)
def test_bad_options_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoding(kind, 8, **options)


@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
def test_a_list_must_have_a_divisor_per_pair(name: str) -> None:
    lists = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, name: [1.0] * 3}
    with pytest.raises(ConfigError, match=f"{name} has 3 divisors, expected 4"):
        encoding("longrope", 8, original_context_length=8, **lists)


@pytest.mark.parametrize("kind", ["linear", "ntk"])
def test_a_factor_below_one_warns(kind: str) -> None:
    with pytest.warns(UserWarning, match="expected at least 1"):
        encoding(kind, 8, factor=0.5)


@pytest.mark.parametrize("kind", ["linear", "ntk", "ntk-by-parts", "yarn"])
def test_dynamic_is_the_static_one_of_its_length(kind: str) -> None:
    original = {} if kind in ("linear", "ntk") else {"original_context_length": 64}
    options = {"beta_fast": 8.0, "ramp": "turns"} if original else {}
    dynamic = encoding(f"dynamic-{kind}", 16, original_context_length=64, **options)
    plain = rope_frequencies(16, 1e4).inv_freq
    for length in (1, 63, 64):
        found = dynamic.frequencies(length)
        np.testing.assert_allclose(found.inv_freq, plain, rtol=1e-15)
        assert found.attention_factor == 1.0
    for length in (65, 100, 1000):
        static = encoding(kind, 16, factor=length / 64, **original, **options).frequencies()
        found = dynamic.frequencies(length)
        np.testing.assert_allclose(found.inv_freq, static.inv_freq, rtol=1e-13)
        assert found.attention_factor == pytest.approx(static.attention_factor, rel=1e-14)


def test_static_scalings_cost_what_none_costs() -> None:
    """The graph has the same ops: the frequencies are constants of it."""
    positions = torch.tensor([[0, 3, 1000]])
    for kind, options in (
        ("linear", {"factor": 2.0}),
        ("yarn", {"factor": 2.0, "original_context_length": 64, "attention_factor": 1.0}),
    ):
        made = encoding(kind, 16, **options)
        assert made.caches_rotated_keys
        assert not made.attends
        assert len(made.tables(positions, positions.amax(1) + 1)) == 2
