"""Liquid S4: its terms one by one, and where they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.plugins.state_space_cases import (
    array,
    build,
    check_16_bits,
    context,
    convolved,
    fresh,
    kernel,
    modes,
    run,
)

from seqmix.errors import ConfigError
from seqmix.testing import check_mixer
from seqmix_gated_conv.liquid_s4 import LiquidS4

PLAIN = {"state_size": 6, "activation": "none", "output": "linear"}


def products(u: np.ndarray, power: int) -> np.ndarray:
    """``u[t] u[t-1] .. u[t-power+1]``, 0 before the first token."""
    padded = np.concatenate([np.zeros_like(u[:, : power - 1]), u], axis=1)
    return np.prod([padded[:, i : i + u.shape[1]] for i in range(power)], axis=0)


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("form", ["pb", "kb"])
def test_against_the_terms_one_by_one(form: str, degree: int, discretization: str) -> None:
    options = {"liquid_kernel": form, "degree": degree, "discretization": discretization}
    mixer, x = build(LiquidS4, {**PLAIN, **options, "dt_min": 0.05}), torch.randn(2, 70, 12)
    with torch.no_grad():
        mixer.space.input.mul_(20)
    u = array(x)
    y = array(mixer.skip) * u
    for power in range(1, degree + 1):
        taps = kernel(mixer.space, discretization == "bilinear", 70, power)
        # Without a the kernel is its first tap.
        y += convolved(products(u, power), taps[:, :1] if form == "pb" and power > 1 else taps)
    wanted = y @ array(mixer.head.projection.weight).T + array(mixer.head.projection.bias)
    assert np.abs(array(run(mixer, x)) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_kb_of_degree_2_is_the_liquid_state_space_to_second_order() -> None:
    """Of ``x_t = (a + b u_t) x_{t-1} + b u_t`` only neighbours multiply: two inputs show it all."""
    options = {**PLAIN, "liquid_kernel": "kb", "dt_min": 0.05}
    mixer = build(LiquidS4, options, dtype=torch.float64)
    a, b, C = modes(mixer.space, True)
    u = np.zeros((1, 9, 12))
    u[:, 3:5] = np.random.default_rng(0).normal(size=(1, 2, 12))
    h, ys = np.zeros_like(a), []
    for t in range(9):
        h = (a + b * u[0, t, :, None]) * h + b * u[0, t, :, None]
        ys.append(2 * (C * h).sum(1).real)
    y = np.stack(ys)[None] + array(mixer.skip) * u
    wanted = y @ array(mixer.head.projection.weight).T + array(mixer.head.projection.bias)
    assert np.abs(array(run(mixer, torch.as_tensor(u))) - wanted).max() < 1e-12


def test_the_state_keeps_the_last_inputs() -> None:
    specs = build(LiquidS4, {"state_size": 8, "degree": 3}).state_spec()
    assert specs["ssm"].axes == ("B", 12, 1, 4, 2)
    assert specs["inputs"].axes == ("B", 2, 12)
    convolving = build(LiquidS4, {"state_size": 8, "degree": 3, "liquid_kernel": "kb"})
    assert convolving.state_spec()["ssm"].axes == ("B", 36, 1, 4, 2)
    mixer, x = build(LiquidS4, {"state_size": 8, "degree": 3}), torch.randn(2, 7, 12)
    _, after = mixer(x, fresh(mixer), context(0, 7))
    assert torch.equal(after["inputs"], x[:, 5:])


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(LiquidS4, profile="full").raise_for_failures()


@pytest.mark.parametrize("form", ["pb", "kb"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bits(dtype: torch.dtype, tolerance: float, form: str) -> None:
    options = {"state_size": 6, "liquid_kernel": form}
    check_16_bits(LiquidS4, options, dtype, tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 1}, "degree: "),
        ({"liquid_kernel": "polyb"}, "liquid_kernel: "),
        ({"state_size": 9}, "state_size is 9, which is no multiple"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(LiquidS4, options)
    assert message in str(caught.value)
