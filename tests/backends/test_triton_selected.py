"""Attention of selected queries on the Triton kernels, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from tests.backends.triton_kernels import check

from seqmix.ops import selected_attention
from seqmix_triton.ops.selected_attention import (
    selected_attention_backward,
    selected_attention_forward,
)


@pytest.mark.parametrize(
    ("dtype", "heads", "attributes"),
    [
        (torch.float32, (2, 1), {}),
        pytest.param(torch.bfloat16, (3, 3), {"scale": 0.3, "window": 4}, marks=pytest.mark.full),
    ],
)
def test_rows_anywhere_some_of_them_for_none(
    dtype: torch.dtype, heads: tuple[int, int], attributes: dict[str, float]
) -> None:
    torch.manual_seed(0)
    (H, G), S, T = heads, 9, 13
    q, k, v = (torch.randn(2, n, length, size).to(dtype) for n, length, size in (
        (H, S, 16), (G, T, 16), (G, T, 24),
    ))  # fmt: skip
    positions = torch.arange(T).expand(2, T)
    selected = torch.tensor([[8, 0, -1], [3, -1, 5]])
    operands = (q, k, v, positions[:, T - S :], positions, selected, None, None)
    check(
        selected_attention,
        selected_attention_forward,
        selected_attention_backward,
        operands,
        **attributes,
    )
