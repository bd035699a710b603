"""Hyena and its filters: the values of other implementations, the equation, lengths, errors."""

from __future__ import annotations

from typing import Any

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
from torch import Tensor

from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.flops import convolution_flops
from seqmix.testing import check_mixer
from seqmix_gated_conv.filters import ImplicitFilter, ImplicitFilterConfig
from seqmix_gated_conv.hyena import Hyena

SMALL = {"reference_length": 16, "hidden": 16}
WAVES = {"bands": 3, "frequency": 14.0, "layers": 1, "window_shift": 0.05, "normalize": True}
CASES: list[dict[str, Any]] = [
    {"filter": SMALL},
    {"filter": SMALL, "gates": "zoology", "heads": 4},
    {"filter": SMALL | WAVES, "order": 3, "short_taps": 6},
    {"filter": SMALL | WAVES, "order": 4, "heads": 2, "gates": "zoology", "short_taps": 1},
    {"filter": SMALL | {"activation": "relu", "window": "none", "output_bias": True}, "order": 3},
]


def theirs(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights by our names; the layers of their filters share one row of frequencies."""
    given = {
        "frequency": data["p.filter_fn.implicit_filter.1.freq"].expand(3, 16),
        "outer.weight": data["p.filter_fn.implicit_filter.6.weight"],
    }
    for index in range(3):
        for kind in ("weight", "bias"):
            name = f"p.filter_fn.implicit_filter.{2 * index}.{kind}"
            given[f"inner.{index}.{kind}"] = data[name]
    weights = {f"filter.{name}": tensor for name, tensor in given.items()}
    weights["skip"] = data["p.filter_fn.bias"]
    pairs = {"input": "in_proj", "output": "out_proj", "short": "short_filter"}
    for name, other in pairs.items():
        weights |= {f"{name}.{kind}": data[f"p.{other}.{kind}"] for kind in ("weight", "bias")}
    return weights


@pytest.mark.parametrize(
    ("name", "gates"), [("hyena_zoology", "zoology"), ("hyena_safari_order2", "safari")]
)
def test_golden_values(name, gates):
    data = golden(name)
    mixer = build(Hyena, {"filter": SMALL, "gates": gates})
    load(mixer, theirs(data))
    x, close = data["x"], {"rtol": 0, "atol": 1e-5}
    if "k" in data:
        torch.testing.assert_close(mixer.filter(16), data["k"].T, **close)
    torch.testing.assert_close(run(mixer, x), data["y"], **close)
    torch.testing.assert_close(run(mixer, x[:, :13]), data["y_l13"], **close)
    torch.testing.assert_close(run(mixer, x, 1, 2, 13), data["y"], **close)
    # The other order of the gates is another function.
    other = build(Hyena, {"filter": SMALL, "gates": "safari" if gates == "zoology" else "zoology"})
    load(other, theirs(data))
    assert (run(other, x) - data["y"]).abs().max() > 1e-3


def filter_by_definition(options: dict[str, Any], p: dict[str, np.ndarray], length: int) -> Any:
    """``[D, L]`` of the equation, in numpy."""
    c = ImplicitFilterConfig(**options)
    n = np.arange(length, dtype=np.float64)
    time = n / (c.reference_length - 1)
    waves = np.linspace(1e-4, c.bands - 1, c.bands)
    turned = np.exp(-2j * np.pi / c.reference_length * n[:, None] * waves)
    h = np.concatenate([time[:, None], turned.real, turned.imag], 1)
    for i in range(c.layers + 1):
        h = h @ p[f"inner.{i}.weight"].T + p[f"inner.{i}.bias"]
        h = np.sin(p["frequency"][i] * h) if c.activation == "sine" else np.maximum(h, 0)
    taps = h @ p["outer.weight"].T + p.get("outer.bias", 0)
    if c.window == "exponential":
        target = np.log(c.decay_target)
        first, last = target / c.slowest_decay, target / c.fastest_decay
        rates = np.abs(np.linspace(first, last, taps.shape[1]))
        taps = taps * (np.exp(-time[:, None] * rates) + c.window_shift)
    if c.normalize:
        taps = taps / np.abs(taps).sum(1, keepdims=True)
    return taps.T


def by_definition(mixer: Hyena, options: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Hyena of any order and number of heads, token by token and gate by gate."""
    p, width, order = exact(mixer), x.shape[2], options.get("order", 2)
    inside = {k.removeprefix("filter."): v for k, v in p.items() if k.startswith("filter.")}
    filters = filter_by_definition(options["filter"], inside, x.shape[1])
    u = x @ p["input.weight"].T + p["input.bias"]
    u = convolved(u, p["short.weight"][:, ::-1]) + p["short.bias"]
    streams = [u[..., i * width : (i + 1) * width] for i in range(order + 1)]
    gates, value = streams[:-1], streams[-1]
    if options.get("gates", "safari") == "safari":
        gates = gates[::-1]
    rows = np.arange(width) % (width // options.get("heads", 1))
    value = gates[0] * value
    for i in range(1, order):
        picked = rows * (order - 1) + i - 1
        value = gates[i] * (convolved(value, filters[picked]) + p["skip"][picked] * value)
    return value @ p["output.weight"].T + p["output.bias"]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("length", [1, 13, 50])
def test_equation_by_definition(options, length):
    """Every order, and lengths up to three times the reference length."""
    mixer = build(Hyena, options, 12).double()
    x = torch.randn(2, length, 12).double()
    wanted = torch.from_numpy(by_definition(mixer, options, x.numpy()))
    scale = wanted.abs().max().item()
    torch.testing.assert_close(run(mixer, x), wanted, rtol=0, atol=1e-9 * scale)
    by_steps = run(mixer, x, *range(1, length))
    torch.testing.assert_close(by_steps, wanted, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("options", [case["filter"] for case in CASES])
def test_filters_do_not_depend_on_the_length_of_a_call(options):
    made = ImplicitFilter(ImplicitFilterConfig(**options), 6)
    taps = made(200)
    torch.testing.assert_close(made(30), taps[:, :30], rtol=0, atol=1e-6)
    torch.testing.assert_close(made(1), taps[:, :1], rtol=0, atol=1e-6)
    assert taps.isfinite().all()


@pytest.mark.parametrize("options", CASES)
def test_a_tap_is_made_once_in_decoding(options, monkeypatch):
    """And what is computed with those of the state is what is computed with all made anew."""
    mixer = build(Hyena, options, 12).double()
    x = torch.randn(3, 20, 12).double()
    wanted = run(mixer, x)
    made, forward = [], ImplicitFilter.forward

    def counted(filter: ImplicitFilter, length: int, **more: Any) -> Tensor:
        made.append((more["start"], length))
        return forward(filter, length, **more)

    monkeypatch.setattr(ImplicitFilter, "forward", counted)
    # The state keeps taps in float32.
    torch.testing.assert_close(run(mixer.eval(), x, 5, 6, 19), wanted, rtol=0, atol=1e-5)
    assert made == [(0, 5), (5, 1), (6, 13), (19, 1)]


def test_rows_share_the_memory_of_their_taps():
    mixer = build(Hyena, CASES[0], 8).eval()
    _, after = mixer(torch.randn(3, 9, 8), fresh(mixer, 3), Context(torch.arange(9).expand(3, -1)))
    assert after["filter"].shape == (3, 8, 9)
    assert after["filter"].untyped_storage().nbytes() == 8 * 9 * 4


def test_training_makes_all_taps_of_the_present_weights():
    """States may be detached, and outlive a step of the optimizer."""
    mixer = build(Hyena, CASES[0], 8)
    x, places = torch.randn(1, 9, 8), torch.arange(9).expand(1, -1)
    _, state = mixer(x[:, :6], fresh(mixer, 1), Context(places[:, :6]))
    state = {key: t.detach() for key, t in state.items()}
    slopes = []
    for taps in (state["filter"], torch.full_like(state["filter"], float("nan"))):
        y, _ = mixer(x[:, 6:], state | {"filter": taps}, Context(places[:, 6:]))
        slopes.append(torch.autograd.grad(y.square().sum(), mixer.filter.outer.weight)[0])
    assert torch.equal(*slopes)
    assert slopes[0].any()
    stale = mixer.eval()(x[:, 6:], state, Context(places[:, 6:]))[0]
    y, _ = mixer.train()(x[:, 6:], state, Context(places[:, 6:]))
    torch.testing.assert_close(stale, y)
    with torch.no_grad():
        mixer.filter.outer.weight.mul_(2)
    assert not torch.allclose(mixer(x[:, 6:], state, Context(places[:, 6:]))[0], y)


def test_window():
    """The last filter falls to 1/100 of the network within 0.3 reference lengths, the first 1.5."""
    taps = {}
    for window in ("none", "exponential"):
        torch.manual_seed(0)
        config = ImplicitFilterConfig(reference_length=101, window=window)
        taps[window] = ImplicitFilter(config, 5).double()(201)
    ratio = taps["exponential"] / taps["none"]
    for row, n in ((0, 150), (4, 30)):
        torch.testing.assert_close(ratio[row, n].item(), 0.01)
    torch.testing.assert_close(ratio[:, 0], torch.ones(5).double())
    assert (ratio.diff(dim=1) < 0).all()


def test_filter_of_a_window_that_has_vanished_is_finite():
    config = ImplicitFilterConfig(reference_length=2, fastest_decay=0.01, normalize=True)
    filter = ImplicitFilter(config, 3)
    taps = filter(5000)
    taps.sum().backward()
    assert taps.isfinite().all()
    assert all(p.grad.isfinite().all() for p in filter.parameters())


def test_each_layer_learns_its_own_frequencies():
    filter = ImplicitFilter(ImplicitFilterConfig(**SMALL, frequency=14.0), 4)
    assert filter.frequency.shape == (3, 16)
    assert (filter.frequency == 14).all()
    filter(9).square().sum().backward()
    assert (filter.frequency.grad.abs().sum(1) > 0).all()


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits():
    check_mixer(Hyena, profile="full").raise_for_failures()


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("t", [1, 100, 255])
def test_nothing_wraps_around(options, t):
    """Of a later token, less than 1e-4 of the signal is heard in earlier ones."""
    check_nothing_wraps_around(build(Hyena, options), t, loud=3)


@pytest.mark.parametrize("options", [CASES[0], CASES[3]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-2), (torch.float16, 7e-3)])
def test_16_bit_models_make_filters_and_convolve_in_float32(options, dtype, tolerance):
    mixer = build(Hyena, options)
    with torch.no_grad():
        mixer.input.weight.mul_(20)
    narrow = narrowed(mixer, dtype)
    exact_twin = narrowed(narrow, torch.float32)
    assert torch.equal(narrow.filter(40), exact_twin.filter(40))
    # Each gate multiplies what was rounded before.
    allowed = (mixer.config.order - 1) * tolerance
    check_16_bits(narrow, exact_twin, torch.randn(2, 70, 8), allowed)


def test_states_and_flops():
    mixer = build(Hyena, {"filter": SMALL, "order": 3, "heads": 2})
    specs = mixer.state_spec()
    assert {key: spec.axes for key, spec in specs.items()} == {
        "conv": ("B", 32, 2),
        "filter": ("B", 8, "P"),
        "history": ("B", 8, "P"),
        "history_2": ("B", 8, "P"),
    }
    per_token = 8 * 32 + 8 * 8 + 32 * 3 + 3 * 8
    network = 3 * 16 + 2 * 16 * 16 + 16 * 8
    wanted = 2 * 60 * per_token + 2 * 30 * network + 2 * convolution_flops(2, 8, 30, 30)
    assert mixer.flops(2, 30) == wanted
    assert mixer.step_flops(2, 29) == 2 * 2 * (per_token + 2 * 8 * 30) + 2 * network


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'filter' is missing"),
        ({"filter": {}}, "'filter.reference_length' is missing"),
        ({"filter": SMALL, "heads": 3}, "width is 8, which is no multiple of heads = 3"),
        ({"filter": SMALL, "order": 1}, "order: "),
        ({"filter": SMALL | {"hiden": 3}}, "did you mean 'hidden'"),
        ({"filter": SMALL | {"decay_target": 1}}, "filter.decay_target: "),
        ({"filter": SMALL, "num_blocks": 2}, "unknown key 'num_blocks'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        build(Hyena, options)
    assert message in str(caught.value)
