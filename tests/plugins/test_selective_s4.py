"""Selective S4: what the mask lets pass, and its gradient."""

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
    run,
)

from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.testing import check_mixer
from seqmix_gated_conv.selective_s4 import SelectiveS4

PLAIN = {"state_size": 6, "activation": "none", "output": "linear"}


def with_scores(options: dict) -> SequenceMixer:
    """Scores that tell tokens apart: fresh ones are all near 1/2."""
    mixer = build(SelectiveS4, options)
    with torch.no_grad():
        mixer.score.weight.normal_(generator=torch.Generator().manual_seed(1))
    return mixer


@pytest.mark.parametrize("mask", ["soft", "hard"])
def test_against_a_convolution_of_masked_tokens(mask: str) -> None:
    mixer, x = with_scores({**PLAIN, "mask": mask}), torch.randn(2, 70, 12)
    score = 1 / (1 + np.exp(-(array(x) @ array(mixer.score.weight).T + array(mixer.score.bias))))
    u = array(x) * (score if mask == "soft" else score > 0.5)
    y = convolved(u, kernel(mixer.space, False, 70)) + array(mixer.skip) * u
    wanted = y @ array(mixer.head.projection.weight).T + array(mixer.head.projection.bias)
    assert np.abs(array(run(mixer, x)) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_dropped_token_leaves_no_trace() -> None:
    mixer = with_scores({"state_size": 6, "mask": "hard"})
    x = torch.randn(2, 9, 12)
    x[:, 4] = -3 * mixer.get_parameter("score.weight")[0].detach()
    _, before = mixer(x[:, :4], fresh(mixer), context(0, 4))
    _, after = mixer(x[:, :5], fresh(mixer), context(0, 5))
    other = x.clone()
    other[:, 4] *= 2
    assert torch.equal(run(mixer, x), run(mixer, other))
    assert (after["ssm"].abs() <= before["ssm"].abs() + 1e-6).any()


def test_a_hard_mask_learns_straight_through_in_training_only() -> None:
    mixer, x = with_scores({**PLAIN, "mask": "hard"}), torch.randn(2, 9, 12)
    plain = run(mixer, x)
    plain.square().sum().backward()
    assert mixer.score.weight.grad is None
    mixer.train()
    trained = run(mixer, x)
    assert torch.equal(trained, plain)
    trained.square().sum().backward()
    found = mixer.score.weight.grad
    mixer.zero_grad()
    # The same by hand: the gradient of the mask is that of the score.
    score = torch.sigmoid(mixer.score(x))
    mask = (score > 0.5).float().requires_grad_()
    seen = x * mask
    y, _ = mixer.space(seen.unsqueeze(2), fresh(mixer)["ssm"], context(0, 9))
    y = mixer.head(y.squeeze(2) + mixer.skip * seen, context(0, 9))
    (of_mask,) = torch.autograd.grad(y.square().sum(), mask)
    (wanted,) = torch.autograd.grad(score, mixer.score.weight, of_mask)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(SelectiveS4, profile="full").raise_for_failures()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    check_16_bits(SelectiveS4, {"state_size": 6}, dtype, tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mask": "top"}, "mask: "), ({"state_size": 3}, "state_size is 3, which is no multiple")],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SelectiveS4, options)
    assert message in str(caught.value)
