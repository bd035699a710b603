"""Attention of torch, captured as the attention op and re-run at lengths that were not traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.nn.functional as F
from tests.core.test_capture import Function, compare
from torch import Tensor, nn

X = ("B", "S", 6)
LONG = [(1, 4, 0), (2, 7, 0), (3, 65, 1)]
Q, K = ("B", 4, "S", 6), ("B", 2, "P", 6)
SIZES = [(1, 1, 1), (2, 7, 9), (1, 9, 130), (3, 65, 2)]


def _pairs(k: Tensor) -> Tensor:
    """Each head twice, on an axis of their own."""
    return k.unsqueeze(2).expand(-1, -1, 2, -1, -1)


ATTEND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda q, k: F.scaled_dot_product_attention(q[:, :2], k, k),
    "causal": lambda q, k: F.scaled_dot_product_attention(q[:, :2], k, k, is_causal=True),
    "grouped": lambda q, k: F.scaled_dot_product_attention(q, k, k[..., :5], enable_gqa=True),
    "scale": lambda q, k: F.scaled_dot_product_attention(
        q, k, k, is_causal=True, scale=0.3, enable_gqa=True
    ),
    "rank_three": lambda q, k: F.scaled_dot_product_attention(q[:, 0], k[:, 0], k[:, 1]),
    "rank_three_mask": lambda q, k: F.scaled_dot_product_attention(
        q[:, 0], k[:, 0], k[:, 1], q[:, 0, :, :1] + k[:, 0, :, 0].unsqueeze(1)
    ),
    "rank_five": lambda q, k: F.scaled_dot_product_attention(
        q.unflatten(1, (2, 2)), _pairs(k), _pairs(k)
    ),
    "rank_five_mask": lambda q, k: F.scaled_dot_product_attention(
        q.unflatten(1, (2, 2)),
        _pairs(k),
        _pairs(k),
        (k[..., 0] > 0)[:, :, None, None],
    ),
    "broadcast": lambda q, k: F.scaled_dot_product_attention(q, k[:1, :1], k[:, 1:]),
    "additive": lambda q, k: F.scaled_dot_product_attention(
        q, k, k, q[..., :1] + k[:, :1, :, 0].unsqueeze(-2), enable_gqa=True
    ),
    "boolean": lambda q, k: F.scaled_dot_product_attention(
        q, k, k, q[:, :1, :, :1] > k[:, :1, :, 0].unsqueeze(-2), enable_gqa=True
    ),
    "shared": lambda q, k: F.scaled_dot_product_attention(
        q, k, k, q[0, 0, :, :1] > k[0, 0, :, 0], enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", ATTEND)
def test_attention(name):
    found = compare(Function(ATTEND[name]), [Q, K], sizes=SIZES)
    assert "attention" in {op.name for op in found.module.graph("forward").block.ops}


def test_multihead_attention():
    module = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    compare(Function(lambda x: module(x, x, x, need_weights=False)[0]), [X], sizes=LONG)
