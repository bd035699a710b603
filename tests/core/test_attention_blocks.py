"""Attention block by block: the same numbers, and keys out of reach are not looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.ops import attention
from seqmix.ops.attention_blocks import blocks, part_of

S, T = 203, 240
"""More than one block, the last of them short."""


def dense(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, bias: Tensor | None,
    sinks: Tensor | None, *, causal: bool, window: int,
) -> Tensor:  # fmt: skip
    """Every pair of positions, in what the operands are in."""
    rows, columns = queries.unsqueeze(-1), keys.unsqueeze(1)
    seen = (rows >= 0) & (columns >= 0)
    if causal:
        seen = seen & (columns <= rows)
    if window:
        seen = seen & (rows - columns < window)
    share = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(share, 1) for t in (k, v))
    logits = q @ k.mT * q.shape[-1] ** -0.5
    logits = logits if bias is None else logits + bias
    logits = logits.masked_fill(~seen.unsqueeze(1), float("-inf"))
    if sinks is not None:
        sink = sinks.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([sink, logits], 3)
    weights = torch.softmax(logits, -1).nan_to_num()
    return (weights if sinks is None else weights[..., 1:]) @ v


def places(order: str) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys; row 0 has padding in many places, and a block of nothing."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.arange(T).repeat(2, 1)
    queries = keys[:, T - S :].clone()
    keys[0, torch.randperm(T, generator=generator)[:50]] = -1
    queries[0, 60:140] = -1
    queries[1, :70] = -1
    if order == "any":
        keys = keys[:, torch.randperm(T, generator=generator)]
        queries = queries[:, torch.randperm(S, generator=generator)]
    return queries, keys


@pytest.mark.parametrize("order", ["rising", "any"])
@pytest.mark.parametrize("V", [8, 5])
@pytest.mark.parametrize("extra", ["", "bias", "learned bias", "row bias", "sinks"])
@pytest.mark.parametrize(("causal", "window"), [(True, 9), (True, 0), (False, 30), (True, 900)])
def test_values_and_gradients(order: str, V: int, extra: str, causal: bool, window: int) -> None:
    torch.manual_seed(0)
    queries, keys = places(order)
    operands = [torch.randn(2, n, m, w) for n, m, w in ((4, S, 8), (2, T, 8), (2, T, V))]
    operands = [t.double().requires_grad_() for t in operands]
    bias = sinks = None
    if extra == "sinks":
        sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
        operands.append(sinks)
    elif extra:
        shape = (4, 1, T) if extra == "row bias" else (1, 4, S, T)
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=extra != "bias")
        operands += [bias] if bias.requires_grad else []
    grad = torch.randn(2, 4, S, V, dtype=torch.float64)
    options: dict[str, Any] = {"causal": causal, "window": window}
    found, wanted = (
        f(*operands[:3], queries, keys, bias, sinks, **options) for f in (attention, dense)
    )
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(y, operands, grad) for y in (found, wanted))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    queries, keys = places("rising")
    q, k, v = (torch.randn(2, n, m, 8).to(dtype) for n, m in ((4, S), (2, T), (2, T)))
    wanted = dense(
        q.double(), k.double(), v.double(), queries, keys, None, None, causal=True, window=9
    )
    found = attention(q, k, v, queries, keys, window=9)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("window", [1, 64, 300])
def test_a_window_costs_its_size_per_query(window: int) -> None:
    looked_at = _pairs(4096, window=window)
    assert looked_at <= 4096 * (window + max(64, min(256, window)))
    assert looked_at >= 4096 * min(window, 64) - window**2


def test_the_future_is_left_out() -> None:
    assert _pairs(4096, window=0) <= 0.57 * 4096**2


def test_padding_widens_the_reach_by_itself_alone() -> None:
    """The window's keys lie further apart where there is padding between them."""
    assert _pairs(4096, window=64, padding=100) <= _pairs(4096, window=64) + 100 * 4096 // 8


def test_a_budget_of_logits_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmix.ops.attention_chunks._LOGITS", 10 * 256)
    rows = [rows.stop - rows.start for rows, _ in _blocks(256, window=64)]
    assert sum(rows) == 256
    assert max(rows) == 10


def test_parts_of_a_bias_are_views() -> None:
    bias = torch.zeros(1, 3, 6, 8)
    part_of(bias, slice(2, 4), slice(1, 3)).add_(1)
    assert bias.sum() == 3 * 2 * 2
    assert part_of(torch.zeros(8), slice(2, 4), slice(1, 3)).shape == (2,)
    assert part_of(torch.zeros(6, 1), slice(2, 4), slice(1, 3)).shape == (2, 1)
    assert part_of(torch.zeros(()), slice(2, 4), slice(1, 3)).shape == ()


def _pairs(length: int, window: int, padding: int = 0) -> int:
    """How many pairs of a query and a key are computed."""
    found = _blocks(length, window, padding)
    return sum((r.stop - r.start) * (s.stop - s.start) for r, s in found)


def _blocks(length: int, window: int, padding: int = 0) -> list[tuple[slice, slice]]:
    positions = torch.arange(length).unsqueeze(0)
    if padding:
        half = length // 2
        positions = torch.cat([positions[:, :half], positions[:, half:] - padding], 1)
        positions[:, half : half + padding] = -1
    q = torch.zeros(1, 1, length, 4)
    given = {"causal": True, "window": window, "per_head": False}
    return list(blocks(q, q, positions, positions, **given))
