"""H3 against values of the original, against its definition with heads, and its state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.plugins.state_space_cases import (
    array,
    build,
    context,
    convolved,
    fresh,
    kernel,
    run,
)

from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.testing import check_mixer
from seqmix_gated_conv.h3 import H3

GOLDEN = Path(__file__).parents[1] / "golden" / "zoology"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "h3_headdim1.npz") as stored:
        return dict(stored)


def original(values: dict[str, np.ndarray]) -> SequenceMixer:
    """The mixer with the weights of the original; its shift filter is made of B and C."""
    config = json.loads((GOLDEN / "golden.json").read_text())["files"]["h3_headdim1"]["config"]
    mixer = build(H3, {"state_size": config["d_state"], "head_dim": config["head_dim"]}, 8)
    B, C = values["p.ssm_k_kernel.kernel.B"], values["p.ssm_k_kernel.kernel.C"][0]
    taps = B.shape[1]
    shift = np.stack([(B[:, : taps - t] * C[:, t:]).sum(1) for t in range(taps)], 1)
    own = {
        "shift": shift,
        "shift_skip": values["p.ssm_k_D"],
        "skip": values["p.D"],
        "space.log_dt": values["p.kernel.kernel.log_dt"],
        "space.log_decay": values["p.kernel.kernel.inv_A_real"],
        "space.frequency": values["p.kernel.kernel.A_imag"],
        "space.input": values["p.kernel.kernel.B"],
        "space.output": values["p.kernel.kernel.C"][0],
    }
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "output_linear"}
    for ours, theirs in names.items():
        for part in ("weight", "bias"):
            own[f"{ours}.{part}"] = values[f"p.{theirs}.{part}"]
    mixer.load_state_dict({name: torch.as_tensor(value) for name, value in own.items()})
    return mixer


def test_the_original_with_heads_of_one(golden: dict[str, np.ndarray]) -> None:
    mixer, x = original(golden), torch.as_tensor(golden["x"])
    assert np.abs(array(mixer.space.kernel(16)) - golden["k_diag"]).max() < 1e-5
    shift = array(mixer.shift)
    assert np.abs(shift - golden["k_shift"][:, : shift.shape[1]]).max() < 1e-6
    assert np.abs(array(run(mixer, x)) - golden["y"]).max() < 1e-5
    # A prompt of odd length.
    assert np.abs(array(run(mixer, x[:, :13])) - golden["y_l13"]).max() < 1e-5


def test_the_original_step_by_step(golden: dict[str, np.ndarray]) -> None:
    mixer, x = original(golden), torch.as_tensor(golden["x"])
    state, steps = fresh(mixer), []
    for t in range(x.shape[1]):
        y, state = mixer(x[:, t : t + 1], state, context(t, t + 1))
        steps.append(y)
    assert np.abs(array(torch.cat(steps, 1)) - golden["y_step"]).max() < 1e-5


@pytest.mark.parametrize("size", [2, 3])
def test_heads_of_several_channels(size: int) -> None:
    """By the definition, each pair of channels for itself."""
    mixer = build(H3, {"state_size": 6, "head_dim": size, "initialization": "inv"})
    x = torch.randn(2, 80, 12)
    u = array(x)
    q, k, v = (
        u @ array(part.weight).T + array(part.bias)
        for part in (mixer.query, mixer.key, mixer.value)
    )
    k = convolved(k, array(mixer.shift)) + array(mixer.shift_skip) * k
    heads = 12 // size
    q, k, v = (t.reshape(2, 80, size, heads) for t in (q, k, v))
    taps = kernel(mixer.space, True, 80)
    y = np.zeros_like(v)
    for i in range(size):
        for j in range(size):
            pair = k[:, :, i] * v[:, :, j]
            y[:, :, j] += (convolved(pair, taps) + array(mixer.skip) * pair) * q[:, :, i]
    wanted = y.reshape(2, 80, 12) @ array(mixer.output.weight).T + array(mixer.output.bias)
    assert np.abs(array(run(mixer, x)) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_the_state_is_keys_and_modes() -> None:
    specs = build(H3, {"state_size": 8, "head_dim": 3}).state_spec()
    assert specs["keys"].axes == ("B", 12, 7)
    assert specs["ssm"].axes == ("B", 4, 9, 4, 2)
    assert specs["ssm"].dtype == "f32"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    options = {"state_size": 6, "head_dim": 2}
    mixer, exact = build(H3, options, dtype=dtype), build(H3, options, dtype=dtype).float()
    x = torch.randn(2, 21, 12).to(dtype)
    y, wanted = run(mixer, x), run(exact, x.float())
    assert y.dtype == dtype
    assert (y.float() - wanted).abs().max() < tolerance * wanted.abs().max()
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


def test_one_more_token_costs_the_same_after_any_past() -> None:
    mixer = build(H3, {"state_size": 8})
    assert mixer.step_flops(2, 5000) == mixer.step_flops(2, 100) < mixer.flops(2, 100)


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(H3, profile="full").raise_for_failures()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 5}, "mixer 'h3': width is 12, which is no multiple of head_dim = 5"),
        ({"state_size": 5}, "state_size is 5, which is no multiple of"),
        ({"use_fast_fftconv": True}, "unknown key 'use_fast_fftconv'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(H3, options)
    assert message in str(caught.value)
