"""S4D and the bank of state spaces below it: kernels, precision, memory, gradients, errors."""

from __future__ import annotations

import math
from typing import Any

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
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqmix.errors import ConfigError
from seqmix.testing import check_mixer, check_op
from seqmix_gated_conv.s4d import S4D
from seqmix_gated_conv.state_space import DiagonalStateSpace, StateSpaceConfig
from seqmix_gated_conv.state_space_chunks import state_space

FORMS = [("zoh", "lin"), ("zoh", "inv"), ("bilinear", "lin"), ("bilinear", "inv")]


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(S4D, profile="full").raise_for_failures()
    check_op("gated_conv.state_space", "full").raise_for_failures()


@pytest.mark.parametrize(("discretization", "initialization"), FORMS)
def test_kernels_of_any_length(discretization: str, initialization: str) -> None:
    options = {"discretization": discretization, "initialization": initialization}
    space = build(S4D, options).space
    for length in (1, 63, 64, 65, 200):
        wanted = kernel(space, discretization == "bilinear", length)
        assert np.abs(array(space.kernel(length)) - wanted).max() < 1e-10


def test_fresh_modes_are_those_of_the_paper() -> None:
    lin, inv = (
        DiagonalStateSpace(3, StateSpaceConfig(state_size=8, initialization=kind))
        for kind in ("lin", "inv")
    )
    assert torch.allclose(lin.log_decay.exp(), torch.tensor(0.5))
    assert torch.allclose(lin.frequency[1], math.pi * torch.arange(4.0))
    wanted = torch.tensor([8 / math.pi * (8 / (2 * n + 1) - 1) for n in range(4)])
    assert torch.allclose(inv.frequency[2], wanted)
    assert (lin.log_dt >= math.log(0.001)).all()
    assert (lin.log_dt <= math.log(0.1)).all()


@pytest.mark.parametrize(("discretization", "initialization"), FORMS)
def test_against_a_convolution_term_by_term(discretization: str, initialization: str) -> None:
    options = {"discretization": discretization, "initialization": initialization}
    mixer = build(S4D, {**options, "state_size": 10, "activation": "none", "output": "linear"})
    x = torch.randn(2, 90, 12)
    u, head = array(x), mixer.head.projection
    y = convolved(u, kernel(mixer.space, discretization == "bilinear", 90))
    wanted = (y + array(mixer.skip) * u) @ array(head.weight).T + array(head.bias)
    assert np.abs(array(run(mixer, x)) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_the_gate_and_the_activation_stand_behind() -> None:
    mixer = build(S4D, {"state_size": 4})
    x = torch.randn(2, 5, 12)
    y, _ = mixer.space(x.unsqueeze(2), fresh(mixer)["ssm"], context(0, 5))
    z = torch.nn.functional.gelu(y.squeeze(2) + mixer.skip * x)
    value, gate = mixer.head.projection(z).chunk(2, dim=-1)
    assert torch.allclose(run(mixer, x), value * torch.sigmoid(gate), atol=1e-6)


@pytest.mark.parametrize("dt", [0.001, 0.1])
@pytest.mark.parametrize(("discretization", "initialization"), FORMS)
def test_4096_tokens_in_float32(discretization: str, initialization: str, dt: float) -> None:
    """An impulse, whose answer is the kernel, and noise: both stay exact to the end."""
    config = StateSpaceConfig(
        discretization=discretization, initialization=initialization, dt_min=dt, dt_max=dt
    )
    torch.manual_seed(0)
    space = DiagonalStateSpace(2, config)
    impulse = torch.zeros(1, 4096, 1, 2)
    impulse[:, 0] = 1
    inputs = torch.cat([impulse, torch.randn(1, 4096, 1, 2)])
    y, last = space(inputs, torch.zeros(2, 2, 1, 32, 2), context(0, 4096))
    wanted, exact = space(inputs.double(), torch.zeros(2, 2, 1, 32, 2).double(), context(0, 4096))
    answer = kernel(space, discretization == "bilinear", 4096).T
    assert np.abs(array(wanted[0, :, 0]) - answer).max() < 1e-9 * np.abs(answer).max()
    late = np.abs(array(y[0, -64:, 0]) - answer[-64:]).max()
    assert late < 1e-5 * np.abs(answer[-64:]).max() + 1e-9
    assert (y - wanted).abs().max() < 3e-6 * wanted.abs().max()
    assert (last - exact).abs().max() < 3e-6 * exact.abs().max()


def test_steps_give_what_a_prefill_gives() -> None:
    mixer = build(S4D, {"state_size": 16})
    x = torch.randn(2, 140, 12)
    state, steps = fresh(mixer), []
    for t in range(140):
        y, state = mixer(x[:, t : t + 1], state, context(t, t + 1))
        steps.append(y)
    whole, after = mixer(x, fresh(mixer), context(0, 140))
    assert (torch.cat(steps, 1) - whole).abs().max() < 2e-5
    assert (state["ssm"] - after["ssm"]).abs().max() < 2e-5 * after["ssm"].abs().max()


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor):
                # A view of broadcast memory is no memory.
                self.size = max(self.size, t.untyped_storage().nbytes() // t.element_size())
        return out


def test_nothing_of_the_size_of_all_states_is_made() -> None:
    mixer = build(S4D, {"state_size": 64}, width=24)
    x = torch.randn(1, 1024, 24, requires_grad=True)
    with Largest() as largest:
        run(mixer, x).sum().backward()
    assert largest.size <= 6 * 1024 * 24


def test_the_state_is_float32_and_does_not_grow() -> None:
    spec = build(S4D, {"state_size": 64}).state_spec()["ssm"]
    assert spec.axes == ("B", 12, 1, 32, 2)
    assert spec.dtype == "f32"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    check_16_bits(S4D, {}, dtype, tolerance, length=70)


def by_steps(x: Tensor, decay: Tensor, readout: Tensor, state: Tensor, valid: Tensor) -> Tensor:
    """The definition, for torch to differentiate."""
    h, a, out = (torch.view_as_complex(t) for t in (state, decay, readout))
    ys = []
    for t in range(x.shape[1]):
        new = a.unsqueeze(1) * h + x[:, t].mT.unsqueeze(-1)
        here = valid[:, t, None, None]
        h = torch.where(here.unsqueeze(-1), new, h)
        ys.append(torch.where(here, (out.unsqueeze(1) * h).real.sum(-1).mT, 0.0))
    return torch.cat([torch.stack(ys, 1).flatten(), torch.view_as_real(h).flatten()])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 30, 64, 150])
def test_gradients_are_those_of_the_definition(length: int, padded: bool) -> None:
    """Also from one group of state spaces to the next, which 1000 modes of 3 spaces are."""
    torch.manual_seed(length)
    B, G, V, N = 2, 3, 2, 600
    angle, size = torch.rand(G, N) * 3, 1 - torch.rand(G, N) / 4
    decay = torch.stack([size * angle.cos(), size * angle.sin()], -1)
    parts = [torch.randn(B, length, V, G), decay, torch.randn(G, N, 2), torch.randn(B, G, V, N, 2)]
    given = [p.double().requires_grad_() for p in parts]
    valid = torch.rand(B, length) < 0.5 if padded else torch.ones(B, length, dtype=torch.bool)
    y, last = state_space(*given, valid)
    found = torch.cat([y.flatten(), last.flatten()])
    wanted = by_steps(*given, valid)
    assert (found - wanted).abs().max() < 1e-10
    weights = torch.randn(found.numel()).double()
    ours = torch.autograd.grad((found * weights).sum(), given)
    theirs = torch.autograd.grad((wanted * weights).sum(), given)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= 1e-10 * other.abs().max().clamp(min=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"state_size": 7},
            "a state space: state_size is 7, which is no multiple of its pairs = 2",
        ),
        ({"dt_min": 0.2}, "dt_min = 0.2 must not be above dt_max = 0.1"),
        ({"dt_min": 0.0}, "dt_min: "),
        ({"dt_min": 1e-300}, "dt_min: Input should be greater than or equal to"),
        ({"dt_max": 1e300}, "dt_max: Input should be less than or equal to"),
        ({"discretization": "euler"}, "discretization: "),
        ({"d_state": 8}, "unknown key 'd_state'"),
        ({"l_max": 1024}, "unknown key 'l_max'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(S4D, options)
    assert message in str(caught.value)
