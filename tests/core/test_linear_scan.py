"""``linear_scan`` in torch: values, gradients, states between calls, and what it costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.ops import linear_scan

SEMIRINGS = ("plus_times", "max_plus")


def loop(a: Tensor, b: Tensor, state: Tensor, semiring: str) -> tuple[Tensor, Tensor]:
    out = []
    for t in range(a.shape[1]):
        if semiring == "max_plus":
            state = torch.maximum(a[:, t] + state, b[:, t])
        else:
            state = a[:, t] * state + b[:, t]
        out.append(state)
    return torch.stack(out, 1), state


def operands(semiring, S, B=2, D=3, dtype=torch.float64):
    torch.manual_seed(S)
    a, b = torch.rand(B, S, D, dtype=dtype) * 0.9 + 0.05, torch.randn(B, S, D, dtype=dtype)
    return (a.log() if semiring == "max_plus" else a), b, torch.randn(B, D, dtype=dtype)


@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize("S", [1, 2, 5, 6, 7, 8, 9, 63, 64, 65, 333])
def test_it_is_the_loop(semiring, S):
    tensors = operands(semiring, S)
    for _ in range(2):
        torch.testing.assert_close(
            linear_scan(*tensors, semiring=semiring), loop(*tensors, semiring)
        )
        with torch.no_grad():
            torch.testing.assert_close(
                linear_scan(*tensors, semiring=semiring), loop(*tensors, semiring)
            )
        # Once more on operands that are views with other strides.
        a, b, initial = tensors
        tensors = a.transpose(0, 1).contiguous().transpose(0, 1), b[..., [2, 1, 0]], initial


@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize("S", [1, 4, 7, 13])
def test_gradients(semiring, S):
    inputs = [t.requires_grad_() for t in operands(semiring, S, D=2)]
    assert torch.autograd.gradcheck(lambda *t: linear_scan(*t, semiring=semiring), inputs)
    assert torch.autograd.gradcheck(lambda *t: linear_scan(*t, semiring=semiring)[1], inputs)


@pytest.mark.parametrize("S", [3, 65])
def test_nothing_yet(S):
    """-inf in b and in the initial state: no NaN, and gradients are those of the loop."""
    a, b, initial = operands("max_plus", S)
    b[:, : S - 1, 0] = -torch.inf
    b[:, :, 1] = -torch.inf
    initial[:] = -torch.inf
    inputs = [t.requires_grad_() for t in (a, b, initial)]
    h, last = linear_scan(*inputs, semiring="max_plus")
    expected, _ = loop(*inputs, "max_plus")
    assert torch.equal(h.isneginf(), expected.isneginf())
    weight = torch.randn(h.shape, dtype=h.dtype)
    grads = torch.autograd.grad((h.exp() * weight).sum() + last.exp().sum(), inputs)
    total = (expected.exp() * weight).sum() + expected[:, -1].exp().sum()
    for found, wanted in zip(grads, torch.autograd.grad(total, inputs), strict=True):
        assert not found.isnan().any()
        finite = wanted.nan_to_num()
        torch.testing.assert_close(found, finite)


def test_a_tie_is_won_by_b():
    a, b, initial = (torch.zeros(1, 1, 1, requires_grad=True) for _ in range(3))
    h, _ = linear_scan(a, b, initial[0], semiring="max_plus")
    h.sum().backward()
    grads = [t.grad for t in (a, b, initial)]
    assert [float(g) for g in grads if g is not None] == [0, 1, 0]


@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize("cut", [1, 5, 64, 69])
def test_piece_by_piece(semiring, cut):
    a, b, initial = operands(semiring, 70)
    whole, end = linear_scan(a, b, initial, semiring=semiring)
    first, state = linear_scan(a[:, :cut], b[:, :cut], initial, semiring=semiring)
    second, last = linear_scan(a[:, cut:], b[:, cut:], state, semiring=semiring)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(last, end)


def test_rounded_inputs_with_a_wide_state():
    a, b, initial = operands("plus_times", 200, dtype=torch.float32)
    half = a.bfloat16(), b.bfloat16()
    h, last = linear_scan(*half, initial)
    exact, end = loop(*(t.double() for t in (*half, initial)), "plus_times")
    assert (h.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(last.double(), end, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(h.double(), exact, rtol=2**-8, atol=2**-8)


def test_gradients_of_rounded_inputs_are_computed_from_the_unrounded_states():
    a, b, initial = operands("max_plus", 40, dtype=torch.float32)
    half = [t.bfloat16().requires_grad_() for t in (a, b)]
    wide = [t.detach().float().requires_grad_() for t in half]
    linear_scan(half[0], half[1], initial, semiring="max_plus")[0].sum().backward()
    linear_scan(wide[0], wide[1], initial, semiring="max_plus")[0].sum().backward()
    for narrow, exact in zip(half, wide, strict=True):
        assert narrow.grad is not None
        assert exact.grad is not None
        torch.testing.assert_close(narrow.grad, exact.grad.bfloat16())


def test_long_decays_lose_no_digits():
    a, b, initial = operands("plus_times", 5000, dtype=torch.float32)
    h, _ = linear_scan(a, b, initial)
    exact, _ = loop(*(t.double() for t in (a, b, initial)), "plus_times")
    torch.testing.assert_close(h.double(), exact, rtol=2e-6, atol=2e-6)


def test_operands_stay_and_results_are_no_views():
    a, b, initial = operands("plus_times", 1)
    copies = [t.clone() for t in (a, b, initial)]
    h, last = linear_scan(a, b, initial)
    last.add_(1)
    assert torch.equal(h, loop(*copies, "plus_times")[0])
    assert all(torch.equal(x, y) for x, y in zip((a, b, initial), copies, strict=True))


def test_the_number_of_calls_grows_like_the_logarithm():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    found = []
    for S in (32, 2048):
        tensors = operands("plus_times", S, dtype=torch.float32)
        with torch.no_grad(), Count() as count:
            linear_scan(*tensors)
        found.append(count.calls)
    assert found[1] < 3 * found[0]


def test_an_unknown_semiring():
    with pytest.raises(ConfigError, match="semiring"):
        linear_scan(*operands("plus_times", 2), semiring="min_plus")


def test_opcheck():
    inputs = [t.float().requires_grad_() for t in operands("max_plus", 9)]
    overload = torch.ops.seqmix.linear_scan.default
    torch.library.opcheck(overload, tuple(inputs), {"semiring": "max_plus"})
