"""selected_attention in torch against attention of all queries."""

from __future__ import annotations

import pytest
import torch

from seqmix.ops import attention, selected_attention

B, H, G, S, T, K = 2, 4, 2, 6, 8, 3


def operands(V=5, dtype=torch.float64):
    torch.manual_seed(0)
    q = torch.randn(B, H, S, K, dtype=dtype)
    k, v = (torch.randn(B, G, T, n, dtype=dtype) for n in (K, V))
    key = torch.arange(T).repeat(B, 1)
    query = torch.arange(T - S, T).repeat(B, 1)
    query[0, 3] = key[0, 5] = -1
    return q, k, v, query, key


def kept(y, selected):
    """``y`` with 0 in the rows that are not selected."""
    chosen = (selected.unsqueeze(2) == torch.arange(S)).any(1)
    return y * chosen[:, None, :, None]


SELECTED = torch.tensor([[5, 0, -1, 3], [2, -1, -1, 1]])


@pytest.mark.parametrize("V", [K, 5])
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"causal": False, "scale": 0.2}])
@pytest.mark.parametrize("bias", [None, (1, 1, S, T), (B, H, S, T), (H, 1, T), (S, T)])
def test_it_is_attention_of_the_selected(V, options, bias) -> None:
    given = operands(V)
    extra = [
        None if bias is None else torch.randn(bias, dtype=torch.float64),
        torch.randn(H).double(),
    ]
    inputs = [x.requires_grad_() for x in (*given[:3], *extra) if x is not None]
    found = selected_attention(*given, SELECTED, *extra, **options)
    every = extra[0]
    if every is not None:
        every = every[(None,) * (4 - every.dim())].expand(-1, -1, S, -1)
    wanted = kept(attention(*given, every, extra[1], **options), SELECTED)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(found)
    slopes = [torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_selected() -> None:
    given = operands()
    for selected in (torch.full((B, 3), -1), torch.zeros(B, 0, dtype=torch.int64)):
        assert selected_attention(*given, selected).abs().max() == 0


def test_gradcheck() -> None:
    q, k, v, query, key = operands()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *a: selected_attention(*a, query, key, SELECTED), inputs)
