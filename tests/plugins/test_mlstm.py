"""The mLSTM cell in torch: its equations, gradients, splitting, padding, types, extreme gates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.plugins.mlstm_cases import VARIANTS, operands, recurrence, worst

from seqmix.errors import ConfigError
from seqmix_xlstm.mlstm import mlstm

FORMS = ("chunkwise", "recurrent", "parallel")
NAMES = ("q", "k", "v", "input_gate", "forget_gate", "state", "m")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("S", [1, 2, 63, 65])
def test_every_form_is_the_recurrence(S: int, form: str, variant: str) -> None:
    given = operands(2, 3, S, 5, 7)
    found = mlstm(*given, form=form, chunk=16, **VARIANTS[variant])
    assert worst(found, recurrence(*given, **VARIANTS[variant])) < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("S", [1, 5, 9])
def test_gradcheck(S: int, form: str, variant: str) -> None:
    """Of all results in all operands, the divisor and m included."""
    given = [x.requires_grad_() for x in operands(1, 3, S, 2, 3)]
    fast = (variant, form, S) != ("xlstm_large", "chunkwise", 5)
    options: dict[str, Any] = {"form": form, "chunk": 4, **VARIANTS[variant]}
    assert torch.autograd.gradcheck(lambda *a: mlstm(*a, **options), given, fast_mode=fast)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_over_many_chunks(variant: str) -> None:
    given = [x.requires_grad_() for x in operands(2, 3, 65, 5, 7)]
    weights = [torch.randn_like(y) for y in recurrence(*given)]

    def slopes(results):
        total = sum((y * w).sum() for y, w in zip(results, weights, strict=True))
        # Without a stabiliser the recurrence above does not touch m.
        return torch.autograd.grad(total, given, materialize_grads=True)

    found = slopes(mlstm(*given, chunk=16, **VARIANTS[variant]))
    wanted = slopes(recurrence(*given, **VARIANTS[variant]))
    for name, one, other in zip(NAMES, found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-9 * max(1.0, float(other.abs().max())), name


@pytest.mark.parametrize("input", ["exp", "sigmoid"])
def test_splitting_anywhere_changes_nothing(input: str) -> None:
    *sequences, state, m = operands(2, 3, 13, 5, 7)
    options: dict[str, Any] = {"input": input, "chunk": 4}
    at_once = mlstm(*sequences, state, m, **options)
    for cut in range(1, 13):
        head = mlstm(*(x[:, :, :cut] for x in sequences), state, m, **options)
        tail = mlstm(*(x[:, :, cut:] for x in sequences), *head[1:], **options)
        h = torch.cat([head[0], tail[0]], 2)
        assert worst((h, *tail[1:]), at_once) < 1e-12, cut


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("S", [1, 6])
def test_padding_alone_changes_neither_state_nor_m(S: int, form: str, variant: str) -> None:
    given = operands(1, 3, S, 4, 5, torch.float32)
    given[3].fill_(-math.inf)
    given[4].fill_(math.inf)
    given = [x.requires_grad_() for x in given]
    h, state, m = mlstm(*given, form=form, chunk=4, **VARIANTS[variant])
    assert torch.equal(state, given[5])
    assert torch.equal(m, given[6])
    slopes = torch.autograd.grad(h.sum() + state.sum() + m.sum(), given)
    assert all(slope.isfinite().all() for slope in slopes)
    assert all(slopes[place].abs().max() == 0 for place in (3, 4))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
def test_padding_between_tokens_changes_nothing(form: str, variant: str) -> None:
    sequences, past = operands(2, 3, 11, 5, 7)[:5], operands(2, 3, 11, 5, 7)[5:]
    places = [1, 2, 5, 7, 8, 9, 10, 14, 15, 17, 18]
    padded = [torch.randn(*x.shape[:2], 20, *x.shape[3:], dtype=x.dtype) for x in sequences]
    padded[3].fill_(-math.inf)
    padded[4].fill_(math.inf)
    for whole, x in zip(padded, sequences, strict=True):
        whole[:, :, places] = x
    options: dict[str, Any] = {"form": form, "chunk": 4, **VARIANTS[variant]}
    given = [x.requires_grad_() for x in (*padded, *past)]
    h, state, m = mlstm(*given, **options)
    assert worst((h[:, :, places], state, m), mlstm(*sequences, *past, **options)) < 1e-12
    slopes = torch.autograd.grad(h.square().sum() + state.sum(), given)
    assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_beside_a_wide_state(dtype: torch.dtype, form: str) -> None:
    given = operands(1, 3, 33, 6, 5, torch.float32)
    given[:3] = [x.to(dtype) for x in given[:3]]
    given[3] = given[3].to(dtype)
    leaves = [x.requires_grad_() for x in given]
    found = mlstm(*leaves, form=form, chunk=16)
    assert [x.dtype for x in found] == [dtype, torch.float32, torch.float32]
    wide = [x.detach().double().requires_grad_() for x in given]
    wanted = recurrence(*wide)
    assert worst((wanted[0], *found[1:]), wanted) < 1e-5
    torch.testing.assert_close(found[0], wanted[0].to(dtype), rtol=1e-2, atol=1e-2)
    slopes = torch.autograd.grad(found[0].double().sum(), leaves)
    exacts = torch.autograd.grad(wanted[0].sum(), wide)
    for x, slope, exact in zip(leaves, slopes, exacts, strict=True):
        assert slope.dtype == x.dtype
        assert (slope.double() - exact).abs().max() < 4e-2 * exact.abs().max()


def test_long_sequences_in_float32() -> None:
    given = operands(1, 2, 4096, 16, 16, torch.float32, past=False)
    given[4] -= 2  # Forget gates around 0, of which many tokens are kept.
    exact = mlstm(*(x.double() for x in given))
    assert worst(mlstm(*given), exact) < 5e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("i", "f"), [(-110, 0), (-110, -110), (-50, 50), (50, -50), (50, 50)])
def test_extreme_gates(i: float, f: float, form: str, dtype: torch.dtype) -> None:
    """Far from 0, all the same way: h is right, and no gradient is NaN."""
    given = operands(1, 3, 21, 4, 5, dtype, past=False)
    given[3] += i
    given[4] += f
    leaves = [x.requires_grad_() for x in given]
    found = mlstm(*leaves, form=form, chunk=8)
    wanted = recurrence(*(x.detach().double() for x in given))
    near = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=near, atol=near)
    slopes = torch.autograd.grad(sum(x.sum() for x in found), leaves)
    assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("form", FORMS)
def test_infinite_gates_forget_or_ignore(form: str) -> None:
    given = operands(1, 3, 9, 4, 5)
    given[4][:, :, 4] = -math.inf  # All from before is forgotten.
    given[3][:, :, 6] = -math.inf  # This token is not written down.
    given[3][:, 1, 4] = -math.inf
    given[6][0, 2] = -math.inf  # There is nothing yet.
    leaves = [x.requires_grad_() for x in given]
    found = mlstm(*leaves, form=form, chunk=4)
    assert all(x.isfinite().all() for x in found)
    rest = [x[:, :, 4:] for x in given[:5]]
    fresh = torch.zeros_like(given[5]), torch.full_like(given[6], -1e30)
    assert worst((found[0][:, :, 5:], *found[1:]), _after(rest, fresh)) < 1e-12
    slopes = torch.autograd.grad(sum(x.sum() for x in found), leaves)
    assert all(slope.isfinite().all() for slope in slopes)
    (slope,) = torch.autograd.grad(mlstm(*leaves, form=form)[0][:, :, 4:].sum(), leaves[5])
    assert slope.abs().max() == 0


def _after(rest, fresh):
    """The cell on what follows, from nothing; h without its first token."""
    h, state, m = mlstm(*rest, *fresh, form="recurrent")
    return h[:, :, 1:], state, m


def test_the_parallel_form_of_the_paper_differs_by_eps_alone() -> None:
    q, k, v, i, f, state, m = operands(1, 2, 12, 4, 5, past=False)
    total = torch.nn.functional.logsigmoid(f).cumsum(2)
    log_d = total[..., :, None] - total[..., None, :] + i[..., None, :]
    log_d = log_d.masked_fill(torch.ones(12, 12).triu(1) > 0, -math.inf)
    top = log_d.amax(-1, keepdim=True)
    scores = (q @ k.mT) * 4**-0.5 * torch.exp(log_d - top)
    below = torch.maximum(scores.sum(-1, keepdim=True).abs(), torch.exp(-top)) + 1e-6
    h, _, _ = mlstm(q, k, v, i, f, state, m)
    difference = (h - scores @ v / below).abs().max()
    assert 1e-12 < difference < 1e-5 * h.abs().max()


def test_operands_may_have_any_strides_and_are_not_changed() -> None:
    given = operands(2, 3, 9, 5, 7)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given[:5]] + given[5:]
    kept = [x.clone() for x in turned]
    for S in (1, 9):
        cut = [x[:, :, :S] for x in turned[:5]] + turned[5:]
        plain = [x.contiguous() for x in cut]
        for one, other in zip(mlstm(*cut), mlstm(*plain), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)
            assert one.is_contiguous()
    assert all(torch.equal(x, y) for x, y in zip(turned, kept, strict=True))


def test_later_tokens_change_no_earlier_output() -> None:
    given = operands(1, 3, 20, 4, 5, torch.float32)
    before, _, _ = mlstm(*given, chunk=8)
    given[:5] = [torch.cat([x[:, :, :13], x[:, :, 13:] + 1], 2) for x in given[:5]]
    after, _, _ = mlstm(*given, chunk=8)
    assert torch.equal(before[:, :, :13], after[:, :, :13])
    assert not torch.equal(before[:, :, 13], after[:, :, 13])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "chunked"}, "form is 'chunked'.*chunkwise"),
        ({"scale_on": "v"}, "scale_on is 'v', expected 'q' or 'k'"),
        ({"input": "relu"}, "input is 'relu', expected 'exp' or 'sigmoid'"),
        ({"normalize": False}, "normalize is off beside input 'exp'"),
        ({"eps": -1.0}, "eps is -1.0, expected 0 or more"),
        ({"soft_cap": math.nan}, "soft_cap is nan, expected 0 or more"),
        ({"chunk": 0}, "chunk is 0, expected 1 or more"),
    ],
)
def test_wrong_options_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mlstm(*operands(1, 2, 3, 4, 5), **options)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, lambda k: k[..., :3], r"axis 3 of 'k'.* is 3, expected 4"),
        (3, lambda i: i.transpose(1, 2), r"axis 1 of 'input_gate'.* is 3, expected 2"),
        (5, lambda c: c[..., :5], r"axis 3 of 'state'.* is 5, expected 6 .* and 1 for n"),
        (6, lambda m: m.unsqueeze(2), r"'m' is f64\[1, 2, 1\] of rank 3, expected \[1, 2\]"),
        (2, lambda v: v.float(), r"dtypes differ: 'q' is f64.*'v' is f32"),
        (0, lambda q: q[0], r"'q' is f64\[2, 3, 4\] of rank 3, expected \[B, H, S, K\]"),
        (4, lambda f: f.long(), "'forget_gate' is i64.*expected dtype"),
    ],
)
def test_wrong_operands_are_refused(place, change, message) -> None:
    given = operands(1, 2, 3, 4, 5)
    given[place] = change(given[place])
    with pytest.raises(ConfigError, match=message):
        mlstm(*given)
