"""Attention of tensors that lie in memory in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqmix.ops import attention


def turned(x: Tensor) -> Tensor:
    """The same numbers, the last axis not dense."""
    return x.mT.contiguous().mT


@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("queries", [1, 9])
def test_results_and_gradients(which: int, window: int, queries: int) -> None:
    torch.manual_seed(0)
    keys = torch.arange(9).expand(2, -1)
    dense = [torch.randn(2, heads, n, 8) for heads, n in ((4, queries), (2, 9), (2, 9))]
    other = list(dense)
    other[which] = turned(dense[which])
    grad = torch.randn(2, 4, queries, 8)
    found = []
    for given, slope in ((dense, grad), (other, turned(grad))):
        operands = [t.detach().requires_grad_() for t in given]
        y = attention(*operands, keys[:, -queries:], keys, window=window)
        found.append([y, *torch.autograd.grad(y, operands, slope)])
    for wanted, same in zip(*found, strict=True):
        torch.testing.assert_close(same, wanted, rtol=1e-5, atol=1e-5)
