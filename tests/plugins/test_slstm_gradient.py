"""Gradients of the sLSTM cell: equations 41 to 51 against autograd through plain torch ops."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.plugins.slstm_cases import STATES, operands, plain_slstm
from torch import Tensor
from torch.autograd import gradcheck

from seqmix_xlstm.slstm import slstm

NAMES = ("gates", "recurrent", *STATES)
FORGET = ("sigmoid", "exp")
CLIPS = (0.0, 0.3, 10.0)


def gradients(
    cell, given: list[Tensor], weigh, valid: Tensor | None = None, **options
) -> dict[str, Tensor]:
    """By operand, of ``weigh(results)``."""
    leaves = [x.clone().requires_grad_() for x in given]
    loss = weigh(cell(*leaves, valid, **options))
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))
    return dict(zip(NAMES, zeros, strict=True))


def of_y(results: tuple[Tensor, ...]) -> Tensor:
    return 3 * results[0].square().sum()


def of_all(results: tuple[Tensor, ...]) -> Tensor:
    """A loss that sees c, n and m each by itself, as no user of y does."""
    torch.manual_seed(5)
    return sum((x * torch.randn_like(x)).sum() for x in results) + of_y(results)


def agree(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    for name, grad in found.items():
        scale = max(1.0, float(wanted[name].abs().max()))
        assert float((grad - wanted[name]).abs().max()) < tolerance * scale, name


def masked(B: int, S: int) -> Tensor:
    torch.manual_seed(3)
    valid = torch.rand(B, S) < 0.6
    valid[0] = False
    return valid


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("forget", FORGET)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("weigh", [of_y, of_all])
@pytest.mark.parametrize("past", [True, False])
def test_each_is_that_of_autograd(
    past: bool, weigh, padded: bool, forget: str, clip: float
) -> None:
    sizes = (3, 9, 2, 5)
    given = operands(*sizes, past=past)
    given[1] = 2 * given[1]
    valid = masked(3, 9) if padded else None
    found, wanted = (
        gradients(cell, given, weigh, valid, forget=forget, clip=clip)
        for cell in (slstm, plain_slstm)
    )
    agree(found, wanted)


@pytest.mark.parametrize("forget", FORGET)
def test_the_clip_is_elementwise_and_before_the_outer_gradient(forget: str) -> None:
    """One token: dh is what flows back through R, cut to the limit (equation 49)."""
    given = operands(2, 1, 2, 5)
    free, cut = (gradients(slstm, given, of_y, forget=forget, clip=clip) for clip in (0.0, 0.05))
    assert (free["h"].abs() > 0.05).any()
    assert torch.equal(cut["h"], free["h"].clamp(-0.05, 0.05))
    for name in ("gates", "recurrent", "c", "n", "m"):
        assert torch.equal(cut[name], free[name])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("forget", FORGET)
def test_numerical_gradients_agree(forget: str, padded: bool) -> None:
    given = [x.requires_grad_() for x in operands(2, 4, 1, 2)]
    valid = masked(2, 4) if padded else None
    cell = partial(slstm, forget=forget, clip=0.0)
    assert gradcheck(lambda *x: cell(*x, valid), given)


def test_numerical_gradients_of_y_agree_in_an_empty_cell() -> None:
    """A c or n that is not quite 0 would be kept, though the cell forgets the empty ones."""
    given = [x.requires_grad_() for x in operands(2, 3, 1, 2, past=False)]
    for valid in (None, masked(2, 3), torch.tensor([[False, True, True]] * 2)):
        assert gradcheck(lambda *x, v=valid: slstm(*x, v, clip=0.0)[0], given, eps=1e-7, atol=1e-4)


@pytest.mark.parametrize("forget", FORGET)
def test_y_sees_c_and_n_times_exp_m_alone(forget: str) -> None:
    """So that the gradient of m is ``c dc + n dn``; 0 where there is no state."""
    gates, recurrent, h, c, n, m = operands(2, 9, 2, 5)
    shift = torch.randn_like(m)
    y, *_ = slstm(gates, recurrent, h, c, n, m, forget=forget)
    scale = torch.exp(-shift)
    moved, *_ = slstm(gates, recurrent, h, c * scale, n * scale, m + shift, forget=forget)
    assert (y - moved).abs().max() < 1e-12
    found = gradients(slstm, [gates, recurrent, h, c, n, m], of_y, forget=forget)
    assert (found["m"] - c * found["c"] - n * found["n"]).abs().max() < 1e-12
    assert found["m"].abs().max() > 1e-2
    empty = gradients(slstm, operands(2, 9, 2, 5, past=False), of_y, forget=forget)
    assert (empty["m"] == 0).all()


@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_gradients_pass_from_piece_to_piece(at: int, clip: float) -> None:
    def pieces(gates, recurrent, *rest, **options):
        *states, valid = rest
        first, *middle = slstm(gates[:, :at], recurrent, *states, valid, **options)
        second, *last = slstm(gates[:, at:], recurrent, *middle, valid, **options)
        return torch.cat([first, second], 1), *last

    for past in (True, False):
        given = operands(2, 9, 2, 5, past=past)
        found, wanted = (gradients(f, given, of_all, clip=clip) for f in (pieces, slstm))
        agree(found, wanted)


def test_what_stands_at_padding_reaches_no_gradient() -> None:
    given, valid = operands(3, 9, 2, 5), masked(3, 9)
    wanted = gradients(slstm, given, of_all, valid)
    given[0][~valid] = torch.nan
    agree(gradients(slstm, given, of_all, valid), wanted, 1e-12)


def test_a_very_small_first_input_gate_gives_no_nan() -> None:
    given = operands(2, 4, 2, 5, torch.float32, past=False)
    given[0][:, 0, :, 0] = -110.0
    assert all(g.isfinite().all() for g in gradients(slstm, given, of_y).values())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_gradients_have_the_dtype_of_their_operand(dtype: torch.dtype, padded: bool) -> None:
    gates, recurrent, *states = operands(2, 17, 2, 5, dtype)
    given = [gates, recurrent, *(s.float() for s in states)]
    valid = masked(2, 17) if padded else None
    found = gradients(slstm, given, of_y, valid)
    wanted = gradients(slstm, [x.double() for x in given], of_y, valid)
    for name, x in zip(NAMES, given, strict=True):
        assert found[name].dtype == x.dtype
    agree(found, wanted, 1e-5 if dtype == torch.float32 else 3e-2)


def test_only_what_is_wanted_is_computed() -> None:
    gates, recurrent, *states = operands(2, 5, 2, 3)
    every = gradients(slstm, [gates, recurrent, *states], of_y)
    gates.requires_grad_()
    of_y(slstm(gates, recurrent, *states)).backward()
    assert torch.equal(gates.grad, every["gates"])
    assert recurrent.grad is None


def test_twice_through_one_graph() -> None:
    """What the forward pass saved is not used up."""
    leaves = [x.requires_grad_() for x in operands(2, 5, 2, 3)]
    loss = of_y(slstm(*leaves))
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, leaves)))
