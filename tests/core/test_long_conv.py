"""``long_conv`` in torch: values, gradients, causality, pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqmix.ops import long_conv

LENGTHS = [(1, 1, None), (1, 9, 6), (5, 2, 0), (31, 7, 3), (33, 1, 4), (33, 65, None)]
LENGTHS += [(65, 200, 3), (100, 7, 150), (129, 64, 1), (12, 40, 11), (16, 20, 48)]


def by_definition(x: Tensor, filter: Tensor, history: Tensor | None) -> Tensor:
    seq = x if history is None else torch.cat([history, x], -1)
    y, T, S = torch.zeros_like(seq), seq.shape[2], x.shape[2]
    for tap in range(min(T, filter.shape[1])):
        y[..., tap:] += filter[:, tap, None] * seq[..., : T - tap]
    return y[..., T - S :]


def operands(S, L, P, dtype=torch.float64):
    torch.manual_seed(S + L)
    history = None if P is None else torch.randn(2, 3, P, dtype=dtype)
    return torch.randn(2, 3, S, dtype=dtype), torch.randn(3, L, dtype=dtype), history


@pytest.mark.parametrize(("S", "L", "P"), LENGTHS)
def test_it_is_the_definition(S, L, P):
    tensors = operands(S, L, P)
    torch.testing.assert_close(long_conv(*tensors), by_definition(*tensors))
    with torch.no_grad():
        torch.testing.assert_close(long_conv(*tensors), by_definition(*tensors))


@pytest.mark.parametrize(("S", "L", "P"), LENGTHS)
def test_float32_is_exact_to_rounding(S, L, P):
    tensors = operands(S, L, P)
    narrow = [None if t is None else t.float() for t in tensors]
    exact = by_definition(*(None if t is None else t.double() for t in narrow))
    assert (long_conv(*narrow).double() - exact).abs().max() <= 1e-6 * exact.abs().max()


@pytest.mark.parametrize(("S", "L", "P"), [(1, 4, 5), (3, 9, 4), (6, 2, 0), (34, 3, 2)])
def test_gradients(S, L, P):
    inputs = [t.requires_grad_() for t in operands(S, L, P)]
    assert torch.autograd.gradcheck(long_conv, inputs)
    assert torch.autograd.gradcheck(lambda x, filter: long_conv(x, filter), inputs[:2])


@pytest.mark.parametrize(("S", "L", "P"), [*LENGTHS, (1, 4, 300)])
def test_filters_that_share_a_channel(S, L, P):
    """They are as good as copies of the channel, forward and backward."""
    x, first, history = operands(S, L, P)
    inputs = [t.requires_grad_() for t in (x, first, history) if t is not None]
    filter = torch.cat([first, first.flip(0) * 2, first - 1])
    y = long_conv(x, filter, history)
    copied = [t if t is None else t.repeat(1, 3, 1) for t in (x, history)]
    wanted = by_definition(copied[0], filter, copied[1])
    torch.testing.assert_close(y, wanted)
    weight = torch.randn_like(y)
    gradients = (
        torch.autograd.grad((t * weight).sum(), inputs, retain_graph=True) for t in (y, wanted)
    )
    torch.testing.assert_close(*gradients)


def test_gradients_are_those_of_the_definition():
    tensors = operands(70, 90, 20)
    found, wanted = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
    weight = torch.randn(tensors[0].shape, dtype=torch.float64)
    (long_conv(*found) * weight).sum().backward()
    (by_definition(*wanted) * weight).sum().backward()
    torch.testing.assert_close([t.grad for t in found], [t.grad for t in wanted])


def test_unwanted_gradients_are_not_computed():
    x, filter, history = operands(40, 8, 3)
    long_conv(x.requires_grad_(), filter, history).sum().backward()
    assert x.grad is not None
    assert filter.grad is None


@pytest.mark.parametrize(("S", "L"), [(20, 30), (32, 4), (100, 130), (64, 64)])
def test_no_output_sees_a_later_input(S, L):
    x, filter, history = operands(S, L, 5, torch.float32)
    other = x.clone()
    other[..., S // 2] += 100
    before, after = (long_conv(t, filter, history)[..., : S // 2] for t in (x, other))
    if S <= 32:
        assert torch.equal(before, after)
    else:
        torch.testing.assert_close(before, after, rtol=0, atol=1e-6 * 400)


@pytest.mark.parametrize("L", [1, 7, 64, 100])
@pytest.mark.parametrize("cuts", [(0, 1, 2, 64), (0, 40, 41, 64), (0, 33, 64)])
def test_piece_by_piece(L, cuts):
    x, filter, _ = operands(64, L, None)
    pieces = [long_conv(x[..., i:j], filter, x[..., :i]) for i, j in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(pieces, -1), long_conv(x, filter))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("S", [5, 70])
def test_narrow_inputs_are_computed_in_float32(dtype, S):
    x, filter, history = operands(S, 40, 3, torch.float32)
    narrow = x.to(dtype), filter, history.to(dtype)
    found = long_conv(*narrow)
    assert found.dtype == dtype
    assert torch.equal(found, long_conv(narrow[0].float(), filter, narrow[2].float()).to(dtype))


def test_decoding_with_a_full_history():
    x, filter, history = operands(1, 513, 512)
    expected = (torch.cat([history, x], -1) * filter.flip(1)).sum(-1, keepdim=True)
    torch.testing.assert_close(long_conv(x, filter, history), expected)


def test_operands_stay_and_the_result_is_no_view():
    x, filter, history = operands(40, 50, 3)
    copies = [t.clone() for t in (x, filter, history)]
    long_conv(x, filter, history).add_(1)
    assert all(torch.equal(t, c) for t, c in zip((x, filter, history), copies, strict=True))


@pytest.mark.parametrize(("S", "P"), [(9, 2), (40, None)])
def test_opcheck(S, P):
    x, filter, history = operands(S, 12, P, torch.float32)
    args = (x.requires_grad_(), filter.requires_grad_(), history)
    torch.library.opcheck(torch.ops.seqmix.long_conv.default, args)
