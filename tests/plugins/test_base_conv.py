"""BaseConv: the values of the repository it comes from, the laws, lengths, precision, errors."""

from __future__ import annotations

from typing import Any

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
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.flops import convolution_flops
from seqmix.testing import check_mixer
from seqmix_gated_conv.base_conv import BaseConv

EXPLICIT = {"filter": "explicit", "taps": 16}
IMPLICIT = {"filter": "implicit", "implicit": {"reference_length": 16}}
NAMES = {
    "conv.conv.weight": "short.weight",
    "conv.conv.bias": "short.bias",
    "conv.filter": "explicit",
    "filter": "explicit",
    "conv.mlp.0.weight": "implicit.inner.0.weight",
    "conv.mlp.0.bias": "implicit.inner.0.bias",
    "conv.mlp.2.weight": "implicit.outer.weight",
    "conv.mlp.2.bias": "implicit.outer.bias",
}
CASES: dict[str, dict[str, Any]] = {
    "baseconv_short3": {"taps": 3},
    "baseconv_explicit": EXPLICIT | {"form": "skip"},
    "baseconv_implicit": IMPLICIT | {"form": "skip"},
    "listing_baseconv_explicit": EXPLICIT,
}


def ours(name: str) -> tuple[BaseConv, dict[str, Tensor]]:
    data = golden(name)
    mixer = build(BaseConv, CASES[name])
    given = {key[2:]: value for key, value in data.items() if key.startswith("p.")}
    # The features of a distance are computed here, and a table of weights there.
    given.pop("conv.pos_emb.z", None)
    load(mixer, {NAMES.get(key, key): value for key, value in given.items()})
    return mixer, data


@pytest.mark.parametrize("name", CASES)
def test_golden_values(name):
    mixer, data = ours(name)
    x, close = data["x"], {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(run(mixer, x), data["y"], **close)
    torch.testing.assert_close(run(mixer, x, 5, 6), data["y"], **close)
    short = run(mixer, x[:, :13])
    torch.testing.assert_close(short, data["y"][:, :13], **close)
    # Their transform of 26 samples holds 13 inputs and 14 taps; the last 2 of 16 wrap around.
    first = 2 if mixer.explicit is not None else 0
    torch.testing.assert_close(short[:, first:], data["y_l13"][:, first:], **close)


@pytest.mark.parametrize("name", [name for name in CASES if "listing" not in name])
def test_golden_values_in_float64(name, monkeypatch):
    mixer, data = ours(name)
    if mixer.implicit is not None:
        features = data["p.conv.pos_emb.z"][0].double()
        computed = mixer.implicit._features(torch.arange(16.0).double(), torch.arange(16) / 15)
        torch.testing.assert_close(computed, features, rtol=0, atol=1e-7)
        # Theirs were rounded to float32, whatever the dtype of the model.
        monkeypatch.setattr(mixer.implicit, "_features", lambda n, time: features)
    found = run(mixer.double(), data["x"].double())
    torch.testing.assert_close(found, data["y64"], rtol=0, atol=1e-9)


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits():
    check_mixer(BaseConv, profile="full").raise_for_failures()


@pytest.mark.parametrize("form", ["listing", "skip"])
@pytest.mark.parametrize("activation", ["", "silu"])
def test_equation_by_definition(form, activation):
    """Longer than the filter, whose taps end there; both activations."""
    mixer = build(BaseConv, EXPLICIT | {"form": form, "activation": activation}).double()
    x, p = torch.randn(2, 60, 8).double(), exact(mixer)
    mixed = torch.from_numpy(convolved(x.numpy(), p["explicit"])) + (x if form == "skip" else 0)
    gate = mixer.projection(x)
    act = torch.nn.functional.silu if activation else torch.nn.Identity()
    torch.testing.assert_close(run(mixer, x), act(mixed) * act(gate) + x)


@pytest.mark.parametrize("cuts", [(), (1,), (50,), (33, 34, 90)])
def test_implicit_filter_beyond_its_reference_length(cuts):
    """The filter is the same for every length of call, and goes on by the same formula."""
    mixer = build(BaseConv, IMPLICIT).double()
    x = torch.randn(1, 100, 8).double()
    taps = mixer.implicit(100)
    torch.testing.assert_close(mixer.implicit(30), taps[:, :30])
    assert (taps[:, 16:].abs().amax(0) > 0).all()
    mixed = torch.from_numpy(convolved(x.numpy(), taps.detach().numpy()))
    wanted = mixed * mixer.projection(x) + x
    torch.testing.assert_close(run(mixer, x, *cuts), wanted)


def test_short_filter_is_causal_to_the_bit():
    mixer = build(BaseConv, {"taps": 7, "activation": "silu"})
    x = torch.randn(1, 50, 8)
    later = x.clone()
    later[:, 20:] += 1
    assert torch.equal(run(mixer, x)[:, :20], run(mixer, later)[:, :20])


@pytest.mark.parametrize("options", [EXPLICIT | {"taps": 300}, IMPLICIT])
@pytest.mark.parametrize("t", [1, 100, 255])
def test_nothing_wraps_around(options, t):
    """A loud later token does not sound in earlier ones, not even by rounding, much."""
    check_nothing_wraps_around(build(BaseConv, options), t)


@pytest.mark.parametrize("options", list(CASES.values()))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bit_models_convolve_in_float32(options, dtype, tolerance):
    mixer = build(BaseConv, options)
    check_16_bits(narrowed(mixer, dtype), mixer, torch.randn(2, 70, 8), tolerance)


def test_states():
    """A short or explicit filter remembers what it can reach, an implicit one everything."""
    assert build(BaseConv, {}).state_spec()["conv"].axes == ("B", 8, 2)
    assert build(BaseConv, EXPLICIT).state_spec()["history"].axes == ("B", 8, 15)
    implicit = build(BaseConv, IMPLICIT).state_spec()
    assert implicit["history"].axes == implicit["filter"].axes == ("B", 8, "P")
    assert "filter" not in build(BaseConv, EXPLICIT).state_spec()
    assert fresh(build(BaseConv, {"filter": "explicit", "taps": 1}), 2)["history"].shape[2] == 0


def test_flops():
    assert build(BaseConv, {}).flops(2, 30) == 2 * 60 * (8 * 9 + 8 * 3)
    assert build(BaseConv, EXPLICIT).flops(2, 16) == 2 * 32 * 72 + convolution_flops(2, 8, 16, 16)
    network = 2 * 16 * (3 * 16 + 16 * 8)
    assert (
        build(BaseConv, IMPLICIT).flops(2, 16) == build(BaseConv, EXPLICIT).flops(2, 16) + network
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "implicit"}, "needs 'implicit' with a reference_length"),
        (IMPLICIT | {"taps": 3}, "an implicit filter has any length"),
        ({"implicit": {"reference_length": 4}}, "is of no use with filter = 'short'"),
        ({"filter": "explicit"}, "needs 'taps'"),
        ({"form": "skip"}, "form = 'skip' is one of long filters"),
        ({"filter_std": 1.0}, "'filter_std' is of filter = 'explicit'"),
        ({"taps": 0}, "taps: "),
        ({"kernel": 3}, "unknown key 'kernel'"),
        ({"filter": "implicit", "implicit": {}}, "'implicit.reference_length' is missing"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        build(BaseConv, options)
    assert message in str(caught.value)
