"""RoPE and YaRN: ramps, table precision, layouts, options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.scaling import correction_range, rope_frequencies, yarn_frequencies
from seqmix_rope.yarn import Yarn, YarnConfig


def test_ramp_ends_before_rounding() -> None:
    known = {
        (128, 1e4, 4096): (20.945, 45.027),
        (64, 1e5, 8192): (10.304, 19.937),
        (64, 150000.0, 4096): (8.0928, 17.3980),
    }
    for (dim, theta, length), ends in known.items():
        found = correction_range(dim, theta, length, 32, 1, truncate=False)
        assert found == pytest.approx(ends, abs=6e-4)


def test_ramp_ends_that_meet_are_moved_apart() -> None:
    low, high = correction_range(8, 10000.0, 8, 2, 1, truncate=True)
    assert low < high < low + 2
    assert np.isfinite(yarn_frequencies(8, 10000.0, 4, 8, 2, 2).inv_freq).all()


def test_tables_are_exact_to_float32_far_out() -> None:
    encoding = Rope(RopeConfig(theta=1e5), head_dim=64)
    positions = torch.tensor([[0, 1, 8191, 131071, 1048575]])
    cos, sin = encoding.tables(positions, positions.amax(1) + 1)
    inv_freq = rope_frequencies(64, 1e5).inv_freq
    angles = positions.numpy()[..., None].astype(np.longdouble) * inv_freq.astype(np.longdouble)
    assert np.abs(cos.numpy() - np.cos(angles)).max() < 1e-7
    assert np.abs(sin.numpy() - np.sin(angles)).max() < 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_the_model_does_not_touch_the_tables(dtype: torch.dtype) -> None:
    encoding = Yarn(YarnConfig(factor=2, original_context_length=64), head_dim=8)
    positions = torch.tensor([[3, 100000]])
    before = encoding.tables(positions, positions.amax(1) + 1)
    after = encoding.to(dtype).to("meta").tables(positions, positions.amax(1) + 1)
    assert not list(encoding.buffers())
    for left, right in zip(before, after, strict=True):
        assert right.dtype == torch.float32
        assert torch.equal(left, right)
    assert encoding.double().tables(positions, positions.amax(1) + 1)[0].dtype == torch.float64


def test_padding_positions_count_as_zero() -> None:
    encoding = Rope(RopeConfig(), head_dim=4)
    cos, sin = encoding.tables(torch.tensor([[-1, 0]]), torch.tensor([1]))
    assert torch.equal(cos[:, 0], cos[:, 1])
    assert torch.equal(sin[:, 0], torch.zeros(1, 2))


@pytest.mark.parametrize("rotary_dim", [6, 10])
def test_layouts_are_permutations_of_each_other(rotary_dim: int) -> None:
    half = Rope(RopeConfig(rotary_dim=rotary_dim), head_dim=10)
    pairs = Rope(RopeConfig(rotary_dim=rotary_dim, layout="interleaved"), head_dim=10)
    x = torch.randn(2, 3, 5, 10, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 7, 9]] * 2)
    length = positions.amax(1) + 1
    order = [i // 2 + (i % 2) * (rotary_dim // 2) for i in range(rotary_dim)]
    order += list(range(rotary_dim, 10))
    turned = half.rotate(x, positions, length, "query")[..., order]
    torch.testing.assert_close(pairs.rotate(x[..., order], positions, length, "query"), turned)
    assert torch.equal(turned[..., rotary_dim:], x[..., rotary_dim:])


def test_scores_depend_on_distance_only() -> None:
    encoding = Rope(RopeConfig(), head_dim=16).double()
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=generator, dtype=torch.float64)

    def score(query: int, key: int) -> float:
        length = torch.tensor([10000])
        a = encoding.rotate(q, torch.tensor([[query]]), length, "query")
        b = encoding.rotate(k, torch.tensor([[key]]), length, "key")
        return float((a * b).sum())

    assert score(9, 4) == pytest.approx(score(5009, 5004), rel=1e-10)


def test_magnitude_rules() -> None:
    def yarn(**options: Any) -> Yarn:
        return Yarn(YarnConfig(factor=40, original_context_length=4096, **options), head_dim=64)

    own = 0.1 * math.log(40) + 1
    assert yarn().frequencies().attention_factor == pytest.approx(own)
    assert yarn(mscale=0.707).frequencies().attention_factor == pytest.approx(own)
    assert yarn(attention_factor=1.5).frequencies().attention_factor == 1.5
    assert yarn(attn_factor=0.5).frequencies().attention_factor == pytest.approx(own / 2)
    deepseek = yarn(mscale=1.0, mscale_all_dim=1.0, scale_softmax=True)
    assert deepseek.frequencies().attention_factor == 1.0
    assert deepseek.logit_scale(torch.tensor([1])) == pytest.approx(1.8739, abs=1e-4)
    assert yarn(mscale=1.0, mscale_all_dim=1.0).logit_scale(torch.tensor([1])) == 1.0


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (RopeConfig, {"rotary_dim": 5}, "multiple of 2"),
        (RopeConfig, {"layout": "neox"}, "half"),
        (RopeConfig, {"thetta": 1e4}, "did you mean 'theta'"),
        (YarnConfig, {"factor": 2}, "original_context_length"),
        (YarnConfig, {"factor": 0, "original_context_length": 8}, "greater than 0"),
        (
            YarnConfig,
            {"factor": 2, "original_context_length": 8, "attention_factor": 1, "attn_factor": 1},
            "give one",
        ),
        (
            YarnConfig,
            {"factor": 2, "original_context_length": 8, "beta_fast": 1, "beta_slow": 32},
            "beta_slow = 32",
        ),
        (YarnConfig, {"factor": 2, "original_context_length": 8, "scale_softmax": True}, "mscale"),
    ],
)
def test_bad_options_are_refused(schema: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(schema, options, "position")


def test_a_factor_below_one_warns() -> None:
    with pytest.warns(UserWarning, match=r"factor is 0\.5, expected at least 1"):
        config = build_config(
            YarnConfig, {"factor": 0.5, "original_context_length": 4096}, "position"
        )
    found = Yarn(config, head_dim=64).frequencies()
    assert found.attention_factor == 1.0
    assert found.inv_freq[-1] == pytest.approx(2 * rope_frequencies(64, 10000.0).inv_freq[-1])


def test_head_size_must_fit() -> None:
    with pytest.raises(ConfigError, match="rotary_dim is 12 with head_dim 8"):
        Rope(RopeConfig(rotary_dim=12), head_dim=8)
    with pytest.raises(ConfigError, match="even number"):
        Rope(RopeConfig(), head_dim=7)
