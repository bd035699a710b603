"""LongConvolution: both forms against other implementations and the definition, lengths, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.plugins.convolution_cases import (
    build,
    check_16_bits,
    check_nothing_wraps_around,
    convolved,
    exact,
    fresh,
    golden,
    load,
    narrowed,
    run,
)

from seqmix.errors import ConfigError
from seqmix.flops import convolution_flops
from seqmix.testing import check_mixer
from seqmix_gated_conv.long_convolution import LongConvolution

SAFARI = {"taps": 16, "form": "safari", "filters": 2, "squash": 0.001}


def test_golden_values_of_the_plain_form():
    data = golden("longconv_zoology")
    mixer = build(LongConvolution, {"taps": 16})
    load(mixer, {"filter": data["p.filter"]})
    x, close = data["x"], {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(run(mixer, x), data["y"], **close)
    torch.testing.assert_close(run(mixer, x, 1, 2, 9), data["y"], **close)
    short = run(mixer, x[:, :13])
    torch.testing.assert_close(short, data["y"][:, :13], **close)
    # Their transform of 26 samples holds 13 inputs and 14 taps; the last 2 of 16 wrap around.
    torch.testing.assert_close(short[:, 2:], data["y_l13"][:, 2:], **close)


def test_golden_values_of_the_squashed_form():
    """Their filter of 2 L taps wraps around: but for the last, their outputs see later inputs."""
    data = golden("longconv_safari")
    mixer = build(LongConvolution, SAFARI)
    kernel = data["p.kernel"]
    weights = {
        "filter": kernel[:, :, :16],
        "skip": data["p.D"],
        "output.weight": data["p.output_linear.0.weight"],
        "output.bias": data["p.output_linear.0.bias"],
    }
    load(mixer, weights)
    x, wanted = data["x_bhl"].transpose(1, 2), data["y_bhl"].transpose(1, 2)
    found = run(mixer, x)
    torch.testing.assert_close(found[:, -1], wanted[:, -1], rtol=0, atol=1e-5)
    assert (found[:, :-1] - wanted[:, :-1]).abs().max() > 1e-3
    weights["filter"] = kernel
    p = {name: t.double().numpy() for name, t in weights.items()}
    around = squashed_form(x.double().numpy(), p, 0.001, wraps=True)
    np.testing.assert_allclose(around, wanted.numpy(), rtol=0, atol=1e-6)
    causal = squashed_form(x.double().numpy(), p, 0.001, wraps=False)
    np.testing.assert_allclose(found.detach().numpy(), causal, rtol=0, atol=1e-6)


def squashed_form(
    x: np.ndarray, p: dict[str, np.ndarray], squash: float, wraps: bool
) -> np.ndarray:
    """The squashed form term by term; ``wraps`` lets taps reach tokens 2 L ahead of themselves."""
    width = x.shape[2]
    kernel = p["filter"].reshape(-1, width, p["filter"].shape[-1])
    kernel = np.sign(kernel) * np.maximum(np.abs(kernel) - squash, 0)
    features = []
    for taps, skip in zip(kernel, p["skip"].reshape(-1, width), strict=True):
        y = convolved(x, taps) + skip * x
        if wraps:
            for t in range(x.shape[1]):
                for s in range(t + 1, x.shape[1]):
                    y[:, t] += taps[:, t - s] * x[:, s]
        features.append(0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))))
    out = np.concatenate(features, 2) @ p["output.weight"].T + p["output.bias"]
    return out[..., :width] / (1 + np.exp(-out[..., width:]))


@pytest.mark.parametrize("cuts", [(), (7,), (20, 21, 22)])
def test_longer_than_the_filter(cuts):
    """What lies L tokens back or more adds nothing, however the sequence is cut."""
    x = torch.randn(2, 90, 8).double()
    plain = build(LongConvolution, {"taps": 20}).double()
    wanted = convolved(x.numpy(), exact(plain)["filter"]) + x.numpy()
    np.testing.assert_allclose(run(plain, x, *cuts).detach().numpy(), wanted, atol=1e-12)
    squashed = build(LongConvolution, SAFARI | {"filters": 3, "filter_std": 0.5}).double()
    wanted = squashed_form(x.numpy(), exact(squashed), 0.001, wraps=False)
    np.testing.assert_allclose(run(squashed, x, *cuts).detach().numpy(), wanted, atol=1e-12)


def test_squashing_leaves_small_taps_out_and_trains_the_others():
    mixer = build(LongConvolution, {"taps": 2, "form": "safari", "squash": 0.1})
    with torch.no_grad():
        mixer.filter.copy_(torch.tensor([0.05, -0.3]).expand(8, 2))
        mixer.skip.zero_()
        assert torch.allclose(mixer._taps(), torch.tensor([0.0, -0.2]))
    run(mixer, torch.randn(1, 4, 8)).sum().backward()
    assert (mixer.filter.grad[:, 0] == 0).all()
    assert (mixer.filter.grad[:, 1] != 0).all()


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits():
    check_mixer(LongConvolution, profile="full").raise_for_failures()


@pytest.mark.parametrize("options", [{"taps": 1000}, SAFARI | {"taps": 100}])
@pytest.mark.parametrize("t", [1, 100, 255])
def test_nothing_wraps_around(options, t):
    check_nothing_wraps_around(build(LongConvolution, options), t)


@pytest.mark.parametrize("options", [{"taps": 50}, SAFARI])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bit_models_convolve_in_float32(options, dtype, tolerance):
    mixer = build(LongConvolution, options)
    check_16_bits(narrowed(mixer, dtype), mixer, torch.randn(2, 70, 8), tolerance)


def test_states_and_flops():
    """Filters share the history; a filter of one tap needs none."""
    mixer = build(LongConvolution, SAFARI)
    assert mixer.state_spec()["history"].axes == ("B", 8, 15)
    assert fresh(build(LongConvolution, {"taps": 1}), 2)["history"].shape == (2, 8, 0)
    assert mixer.flops(2, 30) == convolution_flops(2, 16, 30, 16) + 2 * 60 * 16 * 16
    assert build(LongConvolution, {"taps": 16}).flops(2, 30) == convolution_flops(2, 8, 30, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'taps' is missing"),
        ({"taps": 0}, "taps: "),
        ({"taps": 4, "filters": 2}, "'filters' and 'squash' need form = 'safari'"),
        ({"taps": 4, "form": "safari", "squash": -1}, "squash: "),
        ({"taps": 4, "forms": "safari"}, "did you mean 'form'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        build(LongConvolution, options)
    assert message in str(caught.value)
