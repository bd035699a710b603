"""What the tests of loops with derived adjoints share: leaves, and the loop as the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.eager import adjoint
from seqmix.scan import SHORTEST

__all__ = ["F64", "S", "by_loop", "compare", "leaf", "loss_of"]

S = SHORTEST + 1
F64 = torch.float64


def leaf(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def by_loop(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> Any:
    """What ``run`` gives where every scan is a plain loop."""
    with monkeypatch.context() as patch:
        patch.setattr(adjoint, "run_adjoint", lambda *args: None)
        return run()


def loss_of(last: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Any:
    return sum((t.sin() * (i + 1)).sum() for i, t in enumerate((*last, *outputs)))


def compare(
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]],
    inputs: list[Tensor],
    tolerance: float = 1e-12,
) -> None:
    """Results and gradients of the adjoint against those of the loop, relative to the largest."""

    def everything() -> list[Tensor]:
        last, outputs = run()
        grads = torch.autograd.grad(loss_of(last, outputs), inputs)
        return [*last, *outputs, *grads]

    wanted = by_loop(monkeypatch, everything)
    found = everything()
    assert adjoint.fallbacks() == {}
    assert adjoint.plans(), "nothing was derived"
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        scale = max(1.0, float(b.detach().abs().max()))
        assert float((a - b).detach().abs().max()) <= tolerance * scale
