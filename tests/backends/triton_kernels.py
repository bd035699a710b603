"""Kernels in Triton's interpreter, against the core's ops in float64. Import this before them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-11}


@contextmanager
def poisoned() -> Iterator[None]:
    """Uninitialized tensors hold NaN within."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(3).isnan().all()
        assert torch.zeros(2).new_empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(
    reference: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    operands: Sequence[Tensor | None],
    **attributes: Any,
) -> None:
    """Results and gradients of the kernels are those of the reference in float64."""
    wide = [_wide(t) for t in operands]
    expected = _tuple(reference(*wide, **attributes))
    grads = tuple(_like(e, operands) for e in expected)
    torch.autograd.backward(expected, [g.double() for g in grads])
    needs = tuple(w is not None and w.requires_grad for w in wide)
    with poisoned():
        outputs = _tuple(forward(*operands, **attributes))
        found = backward(grads, tuple(operands), outputs, needs, **attributes)
    # Narrow operands of a product leave their mark on wide results too.
    dtype = next(t.dtype for t in operands if t is not None)
    for i, (result, truth) in enumerate(zip(outputs, expected, strict=False)):
        close(result, truth, f"result {i}", dtype)
    for i, (gradient, operand) in enumerate(zip(found, wide, strict=True)):
        if operand is not None and operand.requires_grad:
            assert gradient.dtype == operands[i].dtype
            close(gradient, operand.grad, f"gradient {i}", dtype)


def close(found: Tensor, truth: Tensor, what: str, dtype: torch.dtype | None = None) -> None:
    """Equal up to the tolerance of ``dtype``, relative to the largest entry."""
    assert found.shape == truth.shape, f"{what}: {found.shape}, expected {truth.shape}"
    if truth.numel() == 0:
        return
    same = found.double() == truth
    distance = torch.where(same, 0.0, (found.double() - truth).abs())
    size = truth[truth.isfinite()].abs().max() if truth.isfinite().any() else truth.new_zeros(())
    error = (distance.max() / size.clamp_min(1.0)).item()
    assert error <= TOLERANCE[dtype or found.dtype], f"{what}: error {error}"


def _wide(x: Tensor | None) -> Tensor | None:
    if x is None or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_()


def _like(expected: Tensor, operands: Sequence[Tensor | None]) -> Tensor:
    first = next(t for t in operands if t is not None)
    return torch.randn(expected.shape).to(first.dtype)


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
