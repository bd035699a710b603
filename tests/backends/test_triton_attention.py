"""Softmax attention as Triton kernels, in the interpreter.

B batch, H query heads, G key heads, S queries, P past keys, K key size, V value size.
"""

from __future__ import annotations

import pytest
import torch
from tests.backends.triton_kernels import check, poisoned
from torch import Tensor

from seqmix.ops import attention
from seqmix_triton.ops.attention import attention_backward, attention_forward

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def operands(
    sizes: tuple[int, ...], dtype: torch.dtype, *, bias: tuple[int, int] | None = None
) -> list[Tensor | None]:
    """Padding among the keys and the queries, and the past in no order."""
    B, H, G, S, P, K, V = sizes
    q = torch.randn(B, S, H, K).transpose(1, 2).to(dtype)
    k = torch.randn(B, P + S, G, K).transpose(1, 2).to(dtype)
    v = torch.randn(B, G, P + S, V).to(dtype)
    query_positions = P + torch.arange(S).repeat(B, 1)
    key_positions = torch.cat([torch.randperm(P).repeat(B, 1), query_positions], 1)
    if S > 3:
        query_positions[:, S // 2] = key_positions[:, P + S // 2] = -1
    if P > 2:
        key_positions[-1, :2] = -1
    extra = None if bias is None else torch.randn(*bias, S, P + S).to(dtype)
    return [q, k, v, query_positions, key_positions, extra]


QUICK = [
    (1, 1, 1, 1, 0, 16, 24),
    (1, 2, 2, 17, 0, 24, 16),
    (1, 4, 2, 5, 30, 8, 40),
]
LONG = (1, 6, 2, 65, 66, 40, 24)


@pytest.mark.parametrize("sizes", [*QUICK, pytest.param(LONG, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("causal", "window"),
    [pytest.param(True, 0, marks=pytest.mark.full), (True, 3), (False, 0)],
)
def test_attention(sizes: tuple[int, ...], causal: bool, window: int) -> None:
    given = [*operands(sizes, F32), None]
    check(
        attention, attention_forward, attention_backward, given, causal=causal, window=window
    )  # fmt: skip


def test_blocks_of_keys() -> None:
    given = [*operands((1, 2, 1, 33, 40, 16, 24), F32), None]
    check(attention, attention_forward, attention_backward, given, window=9)


@pytest.mark.full
@pytest.mark.parametrize("window", [0, 40, 64])
@pytest.mark.parametrize("S", [15, 16, 63, 64, 65, 130])
def test_lengths(S: int, window: int) -> None:
    given = [*operands((2, 2, 1, S, 7, 16, 64), F32), None]
    check(attention, attention_forward, attention_backward, given, window=window)


@pytest.mark.parametrize(
    "bias", [(1, 4), *(pytest.param(b, marks=pytest.mark.full) for b in [(2, 4), (1, 1)])]
)
def test_bias_and_sinks(bias: tuple[int, int]) -> None:
    given = [*operands((2, 4, 2, 17, 3, 16, 8), F32, bias=bias), torch.randn(4)]
    check(attention, attention_forward, attention_backward, given, scale=0.3)


@pytest.mark.parametrize(
    "dtype", [BF16, *(pytest.param(d, marks=pytest.mark.full) for d in (F16, F64))]
)
def test_other_dtypes(dtype: torch.dtype) -> None:
    given = [*operands((1, 2, 1, 17, 5, 16, 24), dtype, bias=(1, 2)), torch.randn(2).to(dtype)]
    check(attention, attention_forward, attention_backward, given)


def test_a_query_that_sees_nothing_gives_zero() -> None:
    q, k, v, query_positions, key_positions, _ = operands((1, 2, 2, 5, 3, 8, 8), F32)
    key_positions = torch.full_like(key_positions, -1)
    given = (q, k, v, query_positions, key_positions, None, None)
    with poisoned():
        outputs = attention_forward(*given)
        grads = attention_backward(
            (torch.randn(1, 2, 5, 8),), given, outputs, (True,) * 3 + (False,) * 4
        )
    assert all((t == 0).all() for t in (*outputs, *grads[:3]))
