"""seqmix.scan with gradients by the derived adjoint: values, gradients, second derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.core.cells import gru_cell, lstm_cell, min_gru_cell
from tests.core.scan_cases import F64, S, by_loop, compare, leaf, loss_of
from torch import Tensor

from seqmix.eager import adjoint, plan
from seqmix.ops import clip_gradient
from seqmix.scan import SHORTEST, scan


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No cell of another test is known."""
    plan.forget()
    torch.manual_seed(4)


CELLS = {"lstm": (lstm_cell, 4, 2), "gru": (gru_cell, 3, 1), "min_gru": (min_gru_cell, 0, 1)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_cells_as_by_the_loop(name: str, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, gates, states = CELLS[name]
    first = [leaf(2, 5) for _ in range(states)]
    real = torch.rand(2, S, 1) < 0.8
    if gates:
        slices, constants = [leaf(2, S, gates * 5)], [leaf(gates * 5, 5), leaf(gates * 5)]
    else:
        slices, constants = [leaf(2, S, 5), leaf(2, S, 5)], []

    def run() -> Any:
        return scan(cell, tuple(first), (*slices, real), tuple(constants), reverse=reverse)

    compare(monkeypatch, run, [*first, *slices, *constants])


def slstm_cell(carries: Any, slices: Any, constants: Any) -> Any:
    """Equations 15 to 17 of the paper for heads ``[H, B, D]``, with the clip of equation 49."""
    h, c, n, m = carries
    i, f, z, o = torch.baddbmm(slices[0], clip_gradient(h, 0.2), constants[0]).chunk(4, -1)
    kept = F.logsigmoid(f) + m
    new_m = torch.maximum(i, kept)
    i, f = torch.exp(i - new_m), torch.exp(kept - new_m)
    c, n = f * c + i * torch.tanh(z), f * n + i
    return (torch.sigmoid(o) * c / n, c, n, new_m), (torch.sigmoid(o) * c / n,)


def test_an_slstm_as_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    h, c, m = (leaf(2, 3, 4) for _ in range(3))
    n = (1 + torch.rand(2, 3, 4, dtype=F64)).requires_grad_()
    x, matrix = leaf(S, 2, 3, 16), leaf(2, 4, 16)

    def run() -> Any:
        return scan(slstm_cell, (h, c, n, m), (x,), (matrix,), axis=0)

    compare(monkeypatch, run, [h, c, n, m, x, matrix])


def test_any_length_takes_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    h, weight = leaf(2, 5), leaf(20, 5)
    for length in (S, 2 * S, SHORTEST):
        x, real = leaf(2, length, 20), torch.ones(2, length, 1, dtype=torch.bool)

        def run(x: Tensor = x, real: Tensor = real) -> Any:
            return scan(lstm_cell, (h, h.detach()), (x, real), (weight, weight[:, 0]))

        compare(monkeypatch, run, [h, x, weight])
    assert len(plan._PLANS) == 1


def test_only_what_is_wanted_is_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    h, x, weight = torch.randn(2, 3, dtype=F64), torch.randn(2, S, 3, dtype=F64), leaf(3, 3)

    def cell(carries: Any, slices: Any, constants: Any) -> Any:
        new = torch.tanh(carries[0] @ constants[0] + slices[0])
        return (new,), (new, slices[0].argmax(-1, keepdim=True))

    (last,), (_, where) = scan(cell, (h,), (x,), (weight,))
    assert not where.requires_grad
    assert last.requires_grad
    assert torch.equal(where[:, 3], x[:, 3].argmax(-1, keepdim=True))
    compare(monkeypatch, lambda: (scan(cell, (h,), (x,), (weight,))[0], ()), [weight])
    (only,) = adjoint.plans()
    assert only.derived.wrt == (2,)


def bent(c: Any, s: Any, k: Any) -> Any:
    new = torch.tanh(c[0] @ k[0] + s[0])
    return (new,), (new + c[0],)


def test_second_derivatives_are_those_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [leaf(1, 3), leaf(1, S, 3), leaf(3, 3)]
    h, x, weight = inputs

    def second() -> tuple[Tensor, ...]:
        last, outputs = scan(bent, (h,), (x,), (weight,))
        grads = torch.autograd.grad(loss_of(last, outputs), inputs, create_graph=True)
        return torch.autograd.grad(sum((g * g.cos()).sum() for g in grads), inputs)

    wanted = by_loop(monkeypatch, second)
    torch.testing.assert_close(second(), wanted, rtol=1e-11, atol=1e-12)


def test_numerical_derivatives_agree() -> None:
    h, weight = leaf(1, 2), leaf(2, 2)
    x = torch.randn(1, S, 2, dtype=F64)

    def run(h: Tensor, weight: Tensor) -> Tensor:
        cell = lambda c, s, k: ((torch.tanh(c[0] @ k[0] + s[0]),), ())  # noqa: E731
        return scan(cell, (h,), (x,), (weight,))[0][0]

    assert torch.autograd.gradcheck(run, (h, weight))
    assert torch.autograd.gradgradcheck(run, (h, weight))
    assert adjoint.plans()


def test_results_share_no_memory() -> None:
    h, x = leaf(2, 3), leaf(2, S, 3)

    def cell(c: Any, s: Any, k: Any) -> Any:
        return (c[0], c[0] + s[0]), (s[0], s[0] * 1.0)

    last, outputs = scan(cell, (h, h), (x,))
    tensors = [*last, *outputs, h, x]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    assert all(t.is_contiguous() for t in tensors)
    assert torch.equal(outputs[0], x)
    assert torch.equal(last[0], h)
    grads = torch.autograd.grad(loss_of(last, outputs), [h, x])
    assert all(g.isfinite().all() for g in grads)


def test_narrow_floats_train_too() -> None:
    h = leaf(2, 4, dtype=torch.bfloat16)
    x = leaf(2, S, 4, dtype=torch.bfloat16)
    weight = (torch.randn(4, 4) / 8).bfloat16().requires_grad_()
    cell = lambda c, s, k: ((torch.tanh(c[0] @ k[0] + s[0]),), ())  # noqa: E731
    (last,), _ = scan(cell, (h,), (x,), (weight,))
    found = torch.autograd.grad(last.float().sum(), [h, x, weight])
    wide = [t.detach().double().requires_grad_() for t in (h, x, weight)]
    (exact,), _ = scan(cell, (wide[0],), (wide[1],), (wide[2],))
    wanted = torch.autograd.grad(exact.sum(), wide)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a.double() - b).abs().max()) < 0.05 * max(1.0, float(b.abs().max()))


def test_operands_changed_in_place_are_noticed() -> None:
    h, x = leaf(2, 3), leaf(2, S, 3)
    weight = leaf(3, 3)
    cell = lambda c, s, k: ((torch.tanh(c[0] @ k[0] + s[0]),), ())  # noqa: E731
    (last,), _ = scan(cell, (h,), (x,), (weight,))
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        last.sum().backward()
