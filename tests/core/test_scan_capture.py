"""Scans that are given one tensor more than once, captured: each place is a thing of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seqmix
from seqmix.capture import capture_function
from seqmix_ir.interpret import Interpreter


class Module(nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, h: Tensor, x: Tensor) -> Any:
        return self.run(h, x)


def two_carries(h: Tensor, x: Tensor) -> Any:
    def cell(c: Any, s: Any, k: Any) -> Any:
        return (torch.tanh(c[0] + s[0]), c[1] * 0.5 + c[0]), (c[0] - c[1],)

    (a, b), (y,) = seqmix.scan(cell, (h, h), (x,))
    return a, b, y


def carry_and_constant(h: Tensor, x: Tensor) -> Any:
    def cell(c: Any, s: Any, k: Any) -> Any:
        return (torch.tanh(c[0] + s[0]) * k[0],), (c[0] - k[0],)

    (a,), (y,) = seqmix.scan(cell, (h,), (x,), (h,))
    return a, a + 1, y


def carry_and_closed_over(h: Tensor, x: Tensor) -> Any:
    def cell(c: Any, s: Any, k: Any) -> Any:
        return (torch.tanh(c[0] + s[0]) * h,), (c[0] - h,)

    (a,), (y,) = seqmix.scan(cell, (h,), (x,))
    return a, a + 1, y


def two_sequences(h: Tensor, x: Tensor) -> Any:
    def cell(c: Any, s: Any, k: Any) -> Any:
        return (torch.tanh(c[0] + s[0] - 2 * s[1]),), (s[1] * c[0],)

    (a,), (y,) = seqmix.scan(cell, (h,), (x, x))
    return a, a + 1, y


@pytest.mark.parametrize(
    "run", [two_carries, carry_and_constant, carry_and_closed_over, two_sequences]
)
def test_each_place_is_a_thing_of_its_own(run: Any) -> None:
    torch.manual_seed(3)
    h, x = torch.randn(2, 4), torch.randn(2, 3, 4)
    captured = capture_function(
        Module(run),
        [h, x],
        input_names=["h", "x"],
        output_names=["a", "b", "y"],
        dynamic=[("B", None), ("B", "S", None)],
    )
    found = Interpreter(captured.module, {}).run("forward", {"h": h.numpy(), "x": x.numpy()})
    for array, wanted in zip(found.values(), run(h, x), strict=True):
        np.testing.assert_allclose(array, wanted.numpy(), atol=1e-6)
