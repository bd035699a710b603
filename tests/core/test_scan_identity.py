"""When two cells are the same: code, numbers, modules and tensors that they refer to."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tests.core.scan_cases import F64, S, compare, leaf
from torch import Tensor, nn

from seqmix.eager import adjoint, plan
from seqmix.scan import scan


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No cell of another test is known."""
    plan.forget()
    torch.manual_seed(4)


class Cell(nn.Module):
    """A cell with parameters, a buffer and a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, dtype=F64)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0], dtype=F64))
        self.slope = 0.5

    def forward(self, carries: Any, slices: Any, constants: Any) -> Any:
        h = torch.tanh(self.inner(carries[0]) * self.slope + slices[0] * self.scale)
        return (h,), (h + carries[0],)


def test_what_a_module_closes_over_gets_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    module, h, x = Cell(), leaf(2, 3), leaf(2, S, 3)

    def run() -> Any:
        # A closure that is made anew in every call, as in a forward.
        return scan(lambda *groups: module(*groups), (h,), (x,))

    compare(monkeypatch, run, [h, x, *module.parameters()])
    run()
    assert len(plan._PLANS) == 1


def test_a_tensor_made_for_each_call_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    h, x, weight = leaf(2, 3), leaf(2, S, 3), leaf(3, 3)

    def run() -> Any:
        doubled = 2 * weight

        def cell(carries: Any, slices: Any, constants: Any) -> Any:
            new = torch.tanh(carries[0] @ doubled + slices[0])
            return (new,), (new,)

        return scan(cell, (h,), (x,))

    compare(monkeypatch, run, [h, x, weight])
    with torch.no_grad():
        weight.mul_(-1)
    compare(monkeypatch, run, [h, x, weight])
    assert len(plan._PLANS) == 1


def decaying(factor: float, c: Any, s: Any, k: Any) -> Any:
    return (c[0] * factor + s[0],), ()


def test_numbers_that_change_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module, h, x = Cell(), leaf(2, 3), leaf(2, S, 3)
    for slope in (0.5, -0.25):
        module.slope = slope
        compare(monkeypatch, lambda: scan(module, (h,), (x,)), [h, x, *module.parameters()])
    for factor in (0.5, 0.25):
        cell = functools.partial(decaying, factor)
        compare(monkeypatch, functools.partial(scan, cell, (h,), (x,)), [h, x])


SCALE = 0.5


class Scaled(nn.Module):
    factor = 1.0

    def forward(self, c: Any, s: Any, k: Any) -> Any:
        return (c[0] * SCALE + self.bent(s[0]),), ()

    def bent(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.factor


def test_numbers_of_the_file_and_of_a_class_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    h, x = leaf(2, 3), leaf(2, S, 3)
    for scale, factor in ((0.5, 1.0), (0.25, 1.0), (0.25, 3.0)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setattr(Scaled, "factor", factor)
        compare(monkeypatch, lambda: scan(Scaled(), (h,), (x,)), [h, x])
    compare(monkeypatch, lambda: scan(Scaled(), (h,), (x,)), [h, x])
    assert len(plan._PLANS) == 3


class Holder:
    """Made anew in every call, as contexts are."""

    def __init__(self, weight: Tensor, factor: float) -> None:
        self.weight = weight
        self.factor = factor


def test_a_new_object_with_the_same_in_it_is_the_same_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    h, x, weight = leaf(2, 3), leaf(2, S, 3), leaf(3)

    def run(factor: float = 0.5) -> Any:
        held = Holder(weight * 2, factor)
        return scan(lambda c, s, k: ((c[0] * held.factor + s[0] * held.weight,), ()), (h,), (x,))

    for _ in range(3):
        compare(monkeypatch, run, [h, x, weight])
    assert len(plan._PLANS) == 1
    monkeypatch.setattr(plan, "_MOST", 2)
    for factor in (1.0, 2.0, 3.0):
        run(factor)
    assert ["another cell in 2 calls" in reason for reason in adjoint.fallbacks().values()] == [
        True
    ]
    assert len(plan._PLANS) == 2


def test_a_list_that_may_change_unseen_is_a_loop() -> None:
    from collections import deque

    h, x, kept = leaf(2, 3), leaf(2, S, 3), deque([0.5])
    scan(lambda c, s, k: ((c[0] * kept[0] + s[0],), ()), (h,), (x,))
    assert list(adjoint.fallbacks().values()) == ["it refers to more than can be followed"]
