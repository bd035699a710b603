"""Sequences turned in memory: the same values as the view, in forward and backward."""

import pytest
import torch

from seqmix.context import Context
from seqmix.ops import long_conv
from seqmix_gated_conv.history import convolve
from seqmix_gated_conv.turned import turned

SIZES = [(1, 200, 130), (2, 130, 200), (3, 7, 5)]


@pytest.mark.parametrize("size", SIZES)
def test_values_are_those_of_the_view(size):
    x = torch.randn(size)
    assert torch.equal(turned(x), x.mT)
    assert torch.equal(turned(x.mT), x)
    assert torch.equal(turned(turned(x)), x)


def test_time_is_inside_in_memory():
    y = turned(torch.randn(2, 200, 130))
    assert y.shape == (2, 130, 200)
    assert y.stride(2) == 1


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_turned_back(size):
    x = torch.randn(size, requires_grad=True)
    grad = torch.randn(size).mT
    turned(x).backward(grad)
    assert torch.equal(x.grad, grad.mT)


def test_gradients_have_gradients():
    x = torch.randn(1, 200, 130, requires_grad=True)
    (first,) = torch.autograd.grad(turned(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.full_like(x, 2))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_convolution_that_is_large_enough_to_be_turned(batch):
    x = torch.randn(batch, 300, 70, requires_grad=True)
    filter = torch.randn(70, 300) / 17
    ctx = Context(torch.arange(300).expand(batch, -1))
    y, after = convolve(x, filter, torch.zeros(batch, 70, 0), ctx)
    expected = long_conv(x.mT.contiguous(), filter).mT
    torch.testing.assert_close(y, expected)
    assert torch.equal(after, x.mT)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, x, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, x, grad))
