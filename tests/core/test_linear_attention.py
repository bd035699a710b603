"""linear_attention in torch: its recurrence, its gradients, extreme decays, types, splitting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqmix.ops import linear_attention

CASES = [
    # B, H, S, K, V, decay, chunk
    (2, 3, 9, 5, 7, "head", 4),
    (1, 2, 65, 6, 3, "key", 64),
    (2, 1, 1, 4, 5, "", 3),
    (2, 1, 1, 4, 5, "key", 64),
    (1, 1, 7, 3, 2, "key", 2),
    (1, 2, 13, 3, 4, "", 5),
    (1, 2, 63, 3, 4, "head", 64),
]


def operands(B, H, S, K, V, decay, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(B, H, S, n, dtype=dtype) for n in (K, K, V))
    shape = {"head": (B, H, S), "key": (B, H, S, K)}.get(decay)
    g = None if shape is None else -torch.rand(shape, dtype=dtype)
    return [q, k, v, g, torch.randn(B, H, K, V, dtype=dtype)]


def recurrence(q, k, v, g, state):
    ys = []
    for t in range(q.shape[2]):
        if g is not None:
            decay = g[:, :, t].exp()
            state = state * (decay[..., None] if decay.dim() == 3 else decay[..., None, None])
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        ys.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(ys, 2), state


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_recurrence(case) -> None:
    *sizes, chunk = case
    given = operands(*sizes)
    for found, wanted in zip(
        linear_attention(*given, chunk=chunk), recurrence(*given), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_with_state(case) -> None:
    *sizes, chunk = case
    given = [None if x is None else x.requires_grad_() for x in operands(*sizes)]
    wanted = [x for x in given if x is not None]
    weights = [torch.randn_like(y) for y in recurrence(*given)]

    def slopes(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = sum((y * w).sum() for y, w in zip(results, weights, strict=True))
        return torch.autograd.grad(total, wanted)

    pairs = zip(
        slopes(linear_attention(*given, chunk=chunk)), slopes(recurrence(*given)), strict=True
    )
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("decay", ["head", "key", ""])
def test_gradcheck(decay) -> None:
    given = [None if x is None else x.requires_grad_() for x in operands(1, 2, 5, 3, 2, decay)]
    assert torch.autograd.gradcheck(lambda *a: linear_attention(*a, chunk=2), given)


@pytest.mark.parametrize("decay", ["head", "key"])
def test_a_decay_to_zero_forgets_and_gives_no_nan(decay) -> None:
    q, k, v, g, state = operands(1, 1, 9, 3, 2, decay)
    g[:, :, 4] = -math.inf
    given = [x.requires_grad_() for x in (q, k, v, g, state)]
    y, last = linear_attention(*given, chunk=4)
    expected, _ = recurrence(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], g[:, :, 4:], 0 * state)
    torch.testing.assert_close(y[:, :, 4:], expected)
    slopes = torch.autograd.grad(y[:, :, 4:].sum() + last.sum(), given)
    assert all(s.isfinite().all() for s in slopes)
    assert slopes[4].abs().max() == 0
    assert slopes[3][:, :, :5].abs().max() < 1e-12


@pytest.mark.parametrize("decay", ["head", "key"])
def test_strong_decays_keep_their_digits(decay) -> None:
    given = operands(1, 2, 200, 4, 5, decay)
    given[3] = given[3] * 200
    exact, _ = recurrence(*given)
    found, _ = linear_attention(*(x.float() for x in given))
    assert (found - exact).abs().max() < 2e-6 * exact.abs().max()


def test_long_sequences_in_float32() -> None:
    given = operands(1, 1, 4096, 8, 8, "head")
    given[3] = given[3] * 1e-3
    exact, _ = linear_attention(*given)
    found, _ = linear_attention(*(x.float() for x in given))
    assert (found - exact).abs().max() < 5e-6 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_beside_a_wide_state(dtype) -> None:
    q, k, v, g, state = operands(1, 2, 33, 4, 5, "head", torch.float32)
    narrow = [x.to(dtype) for x in (q, k, v)]
    y, last = linear_attention(*narrow, g, state)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    exact, state_after = recurrence(*(x.double() for x in (*narrow, g, state)))
    torch.testing.assert_close(last.double(), state_after, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.double(), exact.to(dtype).double(), rtol=2e-2, atol=2e-2)


def test_piece_by_piece_is_at_once() -> None:
    q, k, v, g, state = operands(2, 2, 70, 3, 4, "key")
    at_once, last = linear_attention(q, k, v, g, state)
    pieces, carry = [], state
    for start, stop in ((0, 1), (1, 33), (33, 70)):
        part = (x[:, :, start:stop] for x in (q, k, v, g))
        y, carry = linear_attention(*part, carry)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 2), at_once)
    torch.testing.assert_close(carry, last)


def test_later_tokens_change_no_earlier_output() -> None:
    q, k, v, g, state = operands(1, 1, 20, 3, 4, "head", torch.float32)
    before, _ = linear_attention(q, k, v, g, state, chunk=8)
    v2 = v.clone()
    v2[:, :, 13] += 1
    after, _ = linear_attention(q, k, v2, g, state, chunk=8)
    assert torch.equal(before[:, :, :13], after[:, :, :13])
    assert not torch.equal(before[:, :, 13], after[:, :, 13])


def test_a_wrong_decay_is_refused() -> None:
    q, k, v, _, state = operands(1, 2, 5, 3, 4, "")
    g = torch.zeros(1, 2, 5, 4, dtype=q.dtype)
    with pytest.raises(Exception, match=r"'log_decay' is f64\[1, 2, 5, 4\], expected \[1, 2, 5\]"):
        torch.export.export(_Module(), (q, k, v, g, state))


class _Module(torch.nn.Module):
    def forward(self, q, k, v, g, state):
        return linear_attention(q, k, v, g, state)
