"""Cells whose adjoint cannot be derived, or not be trusted: they run as loops, and say why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.core.scan_cases import S, by_loop, leaf
from torch import Tensor

from seqmix import scan as public_scan
from seqmix.eager import adjoint, plan
from seqmix.errors import ConfigError
from seqmix.scan import SHORTEST, scan


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No cell of another test is known."""
    plan.forget()
    torch.manual_seed(4)


def looks_at_values(c: Any, s: Any, k: Any) -> Any:
    return ((c[0] + s[0],) if float(c[0].detach().sum()) > 0 else (c[0] - s[0],)), ()


def is_random(c: Any, s: Any, k: Any) -> Any:
    return (c[0] + F.dropout(s[0], 0.5),), ()


def changes_in_place(c: Any, s: Any, k: Any) -> Any:
    new = c[0].clone()
    new.add_(s[0])
    return (new,), ()


class Cut(torch.autograd.Function):
    """An identity that cuts gradients at 10: at small ones it is what its ops are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-10, 10)


def has_its_own_backward(c: Any, s: Any, k: Any) -> Any:
    return (Cut.apply(c[0]) + s[0],), ()


def detaches(c: Any, s: Any, k: Any) -> Any:
    return (c[0] * c[0].detach().tanh() + s[0],), ()


def computes_without_gradients(c: Any, s: Any, k: Any) -> Any:
    with torch.no_grad():
        scale = torch.tanh(c[0])
    return (c[0] * scale + s[0],), ()


COUNTED: list[int] = []


def counts_its_calls(c: Any, s: Any, k: Any) -> Any:
    COUNTED.append(1)
    return (c[0] + s[0] * len(COUNTED),), ()


@pytest.mark.parametrize(
    "cell",
    [
        looks_at_values,
        is_random,
        changes_in_place,
        counts_its_calls,
        has_its_own_backward,
        detaches,
        computes_without_gradients,
    ],
    ids=lambda c: c.__name__,
)
def test_what_cannot_be_traced_is_a_loop(
    cell: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    h, x = leaf(2, 3), leaf(2, S, 3)

    def run() -> list[Tensor]:
        COUNTED.clear()
        torch.manual_seed(1)
        (last,), _ = scan(cell, (h,), (x,))
        return [last, *torch.autograd.grad(last.sin().sum(), [h, x])]

    wanted = by_loop(monkeypatch, run)
    with caplog.at_level("DEBUG", logger="seqmix.eager.plan"):
        plan.forget()
        found = [run(), run()][-1]
    if cell is not counts_its_calls:
        assert all(map(torch.equal, found, wanted))
    ((where, reason),) = adjoint.fallbacks().items()
    assert cell.__name__ in where
    assert reason
    assert len([r for r in caplog.records if cell.__name__ in r.getMessage()]) == 1


def running(c: Any, s: Any, k: Any) -> Any:
    return (c[0] + s[0],), (c[0] * s[0],)


def test_watched_calls_loop() -> None:
    h, x = leaf(3), leaf(S, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scan(running, (h,), (x,), axis=0)
    torch.func.grad(lambda x: scan(running, (h,), (x,), axis=0)[0][0].sum())(x)
    torch.func.vmap(lambda x: scan(running, (h,), (x,), axis=0)[0][0])(x.expand(2, S, 3))
    with torch.no_grad():
        scan(running, (h,), (x,), axis=0)
    scan(running, (h,), (x[: SHORTEST - 1],), axis=0)
    scan(running, (h.detach(),), (x.detach(),), axis=0)
    assert not plan._PLANS


def running_wrongly(c: Any, s: Any, k: Any) -> Any:
    return c[0]


def test_wrong_cells_are_refused_as_by_the_loop() -> None:
    h, x = leaf(2, 3), leaf(2, S, 3)
    with pytest.raises(ConfigError, match="carry 0 was"):
        scan(lambda c, s, k: ((c[0].float(),), ()), (h,), (x,))
    with pytest.raises(ConfigError, match="returned Tensor"):
        scan(running_wrongly, (h,), (x,))
    assert public_scan is scan
