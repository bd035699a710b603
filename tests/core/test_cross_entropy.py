"""The loss op against torch's own, and its gradient."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix.ops import cross_entropy


def drawn(dtype: torch.dtype, places: int = 7, vocabulary: int = 19) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(places, vocabulary, generator=generator)
    targets = torch.randint(0, vocabulary, (places,), generator=generator)
    targets[2] = -100
    return logits.to(dtype), targets


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)]
)
def test_losses_and_gradients_are_those_of_torch(
    dtype: torch.dtype, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Narrow logits are widened three rows at a time.
    monkeypatch.setattr(import_module("seqmix.ops.cross_entropy"), "_PART", 3 * 19)
    logits, targets = drawn(dtype)
    ours, theirs = (logits.detach().clone().requires_grad_() for _ in range(2))
    wide = theirs.to(torch.promote_types(dtype, torch.float32))
    weights = torch.linspace(0.5, 2, len(targets), dtype=wide.dtype)
    expected = F.cross_entropy(wide, targets, reduction="none")
    found = cross_entropy(ours, targets)
    torch.testing.assert_close(found, expected, rtol=near, atol=near)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    digits = 1e-2 if dtype == torch.bfloat16 else near
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=digits, atol=digits)
    assert ours.grad.dtype == dtype


def test_gradient_is_exact() -> None:
    logits, targets = drawn(torch.float64, 4, 5)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, targets), logits.requires_grad_())


def test_nothing_asked_and_nothing_there() -> None:
    logits, targets = drawn(torch.float32)
    logits.requires_grad_()
    cross_entropy(logits, torch.full_like(targets, -1)).sum().backward()
    assert logits.grad.count_nonzero() == 0
    assert cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_a_target_out_of_range_is_refused() -> None:
    logits, targets = drawn(torch.float32)
    targets[0] = 19
    with pytest.raises(RuntimeError, match="out of bounds"):
        cross_entropy(logits, targets)
