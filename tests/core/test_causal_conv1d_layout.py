"""A short convolution of a transposed view: the same sums, laid out as they came."""

import pytest
import torch

from seqmix.context import Context
from seqmix.layers import CausalConv
from seqmix.ops import causal_conv1d


@pytest.mark.parametrize("activation", ["", "silu"])
@pytest.mark.parametrize("S", [1, 2, 9])
def test_a_transposed_view_gives_the_same(activation, S):
    x, tail = torch.randn(2, S, 5), torch.randn(2, 5, 3)
    weight, bias = torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
    grads = torch.randn(2, 5, S), torch.randn(2, 5, 3)
    found = []
    for view in (x.mT, x.mT.contiguous()):
        view.requires_grad_()
        out = causal_conv1d(view, weight, bias, tail, activation=activation)
        found.append([*out, *torch.autograd.grad(out, (view, weight, bias), grads)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_channels_stay_inside_in_memory():
    y, _ = causal_conv1d(torch.randn(2, 9, 5).mT, torch.randn(5, 4), None, torch.zeros(2, 5, 3))
    assert y.stride(1) == 1


def test_a_layer_is_the_same_with_padding_behind_it():
    layer, x, tail = CausalConv(5, 4), torch.randn(1, 9, 5), torch.randn(1, 5, 3)
    whole, after = layer(x, tail, Context(torch.arange(9).unsqueeze(0)))
    padded = torch.cat([x, torch.randn(1, 2, 5)], dim=1)
    positions = torch.tensor([[*range(9), -1, -1]])
    longer, same = layer(padded, tail, Context(positions))
    # The compiled loops of two lengths may round the last digit differently.
    torch.testing.assert_close(longer[:, :9], whole, rtol=1e-6, atol=1e-6)
    assert torch.equal(longer[:, 9:], torch.zeros(1, 2, 5))
    assert torch.equal(same, after)
