"""The square of what is above 0: values, gradients, their gradients, and no trace of the other."""

import torch

from seqmix_gated_conv.squared_relu import squared_relu


def test_values_and_gradients_are_those_of_the_two_ops():
    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(3, 40, dtype=torch.float64)
    found, expected = squared_relu(x), torch.relu(x).square()
    assert torch.equal(found, expected)
    ours, theirs = (torch.autograd.grad(y, x, grad)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_second_derivatives():
    x = torch.randn(2, 30, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(squared_relu, (x,))


def test_the_argument_stays_as_it_is():
    x = torch.randn(50)
    before = x.clone()
    squared_relu(x.requires_grad_()).sum().backward()
    assert torch.equal(x, before)
