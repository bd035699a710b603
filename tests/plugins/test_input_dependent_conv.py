"""Mixed filters against a filter per token written out, and the size of what is remembered."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.plugins.recurrent_cases import (
    at_once,
    build,
    by_steps,
    check_16_bits,
    check_pieces_train_alike,
)
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.state import state_bytes
from seqmix.testing import check_mixer
from seqmix_gated_conv.input_dependent_conv import InputDependentConv

F64 = torch.float64
EXAMPLES = [
    *InputDependentConv.examples(),
    {"filters": 2, "taps": 200, "heads": 4, "shared": True},
]


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(InputDependentConv, profile="full").raise_for_failures()


def token_by_token(mixer: InputDependentConv, x: Tensor) -> Tensor:
    """Each token's own filter is made first and applied then, in numpy."""
    w = {name: p.detach().numpy() for name, p in mixer.named_parameters()}
    config, rows, width = mixer.config, x.numpy(), x.shape[2]
    M, H, L = config.filters, config.heads, config.taps
    filters = w["filter"]
    if config.shared:
        filters = np.repeat(filters, width // H, axis=1)
    u = rows @ w["input.weight"].T + w.get("input.bias", 0.0)
    a = rows @ w["mixture.weight"].T + w["mixture.bias"]
    a = a.reshape(*rows.shape[:2], M, H)
    if config.mixture == "softmax":
        a = np.exp(a) / np.exp(a).sum(2, keepdims=True)
    elif config.mixture == "sigmoid":
        a = 1 / (1 + np.exp(-a))
    y = np.zeros_like(u)
    for b in range(rows.shape[0]):
        for t in range(rows.shape[1]):
            own = (np.repeat(a[b, t], width // H, axis=1)[:, :, None] * filters).sum(0)
            for lag in range(min(L, t + 1)):
                y[b, t] += own[:, lag] * u[b, t - lag]
    return torch.from_numpy(y @ w["output.weight"].T + w.get("output.bias", 0.0))


@pytest.mark.parametrize("options", EXAMPLES)
@pytest.mark.parametrize("length", [1, 2, 13, 70])
def test_every_token_has_a_filter_of_its_own(options: dict, length: int) -> None:
    mixer = build(InputDependentConv, options, dtype=F64)
    x = torch.randn(2, length, 24, dtype=F64)
    wanted = token_by_token(mixer, x)
    torch.testing.assert_close(at_once(mixer, x)[0], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", EXAMPLES)
def test_decoding_needs_the_last_inputs_only(options: dict) -> None:
    mixer = build(InputDependentConv, options, dtype=F64)
    x = torch.randn(2, 40, 24, dtype=F64)
    (found, after), (wanted, state) = by_steps(mixer, x), at_once(mixer, x)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after["history"], state["history"])
    assert after["history"].shape == (2, 24, options["taps"] - 1)


def test_the_state_has_one_size_at_any_length() -> None:
    mixer = build(InputDependentConv, {"taps": 9})
    assert state_bytes(mixer.state_spec(), 2, 0, dtype=torch.float32) == 2 * 8 * 24 * 4
    assert state_bytes(mixer.state_spec(), 2, 999, dtype=torch.float32) == 2 * 8 * 24 * 4


def test_what_lies_further_back_than_the_taps_adds_nothing() -> None:
    mixer = build(InputDependentConv, {"taps": 5}, dtype=F64)
    x = torch.randn(1, 30, 24, dtype=F64)
    changed = x.clone()
    changed[:, 10] += 3
    difference = (at_once(mixer, changed)[0] - at_once(mixer, x)[0]).abs().amax((0, 2))
    assert (difference[10:15] > 1e-3).all()
    assert (difference[:10] < 1e-12).all()
    assert (difference[15:] < 1e-12).all()


def test_the_filter_follows_the_input() -> None:
    """The same inputs at all lags, another token at the end: not just a factor, another filter."""
    mixer = build(InputDependentConv, {"filters": 3, "taps": 6}, 4, F64)
    with torch.no_grad():
        mixer.mixture.weight.mul_(5)
        mixer.filter[:, :, 0] = 0  # The last token is then seen by its mixture alone.
        mixer.output.weight.copy_(torch.eye(4))
    x = torch.randn(1, 6, 4, dtype=F64)
    other = x.clone()
    other[:, -1] = -x[:, -1]
    ratio = at_once(mixer, x)[0][0, -1] / at_once(mixer, other)[0][0, -1]
    assert (ratio - ratio[0]).abs().max() > 1e-2


def test_one_filter_with_softmax_is_a_plain_convolution() -> None:
    mixer = build(InputDependentConv, {"filters": 1, "taps": 3}, dtype=F64)
    x = torch.randn(1, 9, 24, dtype=F64)
    u = torch.nn.functional.pad(mixer.input(x).mT, (2, 0))
    y = torch.nn.functional.conv1d(u, mixer.filter[0].flip(1).unsqueeze(1), groups=24)
    torch.testing.assert_close(at_once(mixer, x)[0], mixer.output(y.mT))


@pytest.mark.parametrize("options", EXAMPLES)
def test_pieces_train_like_the_whole(options: dict) -> None:
    check_pieces_train_alike(build(InputDependentConv, options, dtype=F64), 24)


@pytest.mark.parametrize("taps", [3, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 4e-2), ("f16", 5e-3)])
def test_16_bit_models_run_and_train_on_the_cpu(taps: int, dtype: str, tolerance: float) -> None:
    check_16_bits("input_dependent_conv", {"taps": taps, "heads": 2}, dtype, tolerance)


def test_flops_count_a_product_per_tap_or_transforms() -> None:
    mixer = build(InputDependentConv, {"filters": 3, "taps": 4, "heads": 2})
    projections = 2 * 24 * 24 + 24 * 6
    assert mixer.step_flops(2, 50) == 2 * 2 * (projections + 3 * 24 + 3 * 24 * 4)
    assert mixer.step_flops(1, 1) == 2 * (projections + 3 * 24 + 3 * 24 * 2)
    assert mixer.flops(1, 1) == mixer.step_flops(1, 0)
    # A long filter costs by log S, not by its taps.
    long = build(InputDependentConv, {"filters": 3, "taps": 2000})
    by_taps = 2 * 3 * 24 * 2000 * 2000
    assert long.flops(1, 2000) < by_taps / 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "width is 24, which is no multiple of heads = 5"),
        ({"taps": 0}, "taps: "),
        ({"filters": 0}, "filters: "),
        ({"mixture": "relu"}, "mixture: "),
        ({"filter": 3}, "did you mean 'filters'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(InputDependentConv, options)
    assert message in str(caught.value)
