"""Linear attention as Triton kernels, in the interpreter.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from tests.backends.triton_kernels import check
from torch import Tensor

from seqmix.ops import linear_attention
from seqmix_triton.kernel import Config
from seqmix_triton.kernels import linear_attention as forward_kernels
from seqmix_triton.kernels import linear_attention_backward as backward_kernels
from seqmix_triton.kernels.linear_attention_state_backward import CHUNK_STATE_SLOPE
from seqmix_triton.ops.linear_attention import (
    linear_attention_backward,
    linear_attention_forward,
)

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
TILED = (
    forward_kernels.CHUNK_STATES,
    forward_kernels.CHUNK_OUTPUTS,
    CHUNK_STATE_SLOPE,
    backward_kernels.CHUNK_QUERY_SLOPE,
    backward_kernels.CHUNK_KEY_SLOPE,
    backward_kernels.CHUNK_VALUE_SLOPE,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@contextlib.contextmanager
def tiles(size: int) -> Iterator[None]:
    """Small tiles everywhere, so that every loop over tiles runs."""
    config = Config({"L": size, "BLOCK_K": 16, "BLOCK_V": 16})
    with contextlib.ExitStack() as stack:
        for kernel in TILED:
            stack.enter_context(kernel.forced(config))
        yield


def operands(
    sizes: tuple[int, ...], decay: str, dtype: torch.dtype = F32
) -> tuple[Tensor | None, ...]:
    B, H, S, K, V = sizes
    q = torch.randn(B, S, H, K).transpose(1, 2).to(dtype) * K**-0.5
    k = torch.randn(B, H, S, K).to(dtype)
    v = torch.randn(B, S, H, V).transpose(1, 2).to(dtype)
    wide = torch.promote_types(dtype, F32)
    shape = {"none": None, "head": (B, H, S), "channel": (B, H, S, K)}[decay]
    g = None if shape is None else -torch.rand(shape, dtype=wide)
    if g is not None and S > 2:
        g[0, 0, 2] = -torch.inf
        g[-1, -1, S // 2] = -300.0
    return q, k, v, g, torch.randn(B, H, K, V, dtype=wide)


def compare(given: tuple[Tensor | None, ...], chunk: int) -> None:
    check(
        linear_attention, linear_attention_forward, linear_attention_backward, given, chunk=chunk
    )  # fmt: skip


@pytest.mark.parametrize("decay", ["none", "head", "channel"])
@pytest.mark.parametrize("S", [1, 17])
def test_short_sequences(S: int, decay: str) -> None:
    heads = 1 if decay == "channel" else 2
    compare(operands((1, heads, S, 24, 17), decay), 16)


@pytest.mark.parametrize("decay", ["head", pytest.param("none", marks=pytest.mark.full)])
def test_chunks_longer_than_tiles(decay: str) -> None:
    with tiles(16):
        compare(operands((1, 1, 23, 12, 20), decay), 20)


@pytest.mark.full
def test_chunks_of_key_channels() -> None:
    with tiles(16):
        compare(operands((1, 1, 35, 24, 20), "channel"), 64)


@pytest.mark.parametrize(
    "dtype",
    [BF16, pytest.param(F16, marks=pytest.mark.full), pytest.param(F64, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("decay", ["head", pytest.param("channel", marks=pytest.mark.full)])
def test_other_dtypes(decay: str, dtype: torch.dtype) -> None:
    compare(operands((1, 2, 20, 16, 24), decay, dtype), 16)


@pytest.mark.full
@pytest.mark.parametrize("decay", ["none", "head", "channel"])
@pytest.mark.parametrize("S", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize(("K", "V"), [(16, 64), (64, 24), (24, 16)])
def test_every_length(K: int, V: int, S: int, decay: str) -> None:
    compare(operands((1, 3, S, K, V), decay), 64)


@pytest.mark.full
@pytest.mark.parametrize("decay", ["none", "head", "channel"])
@pytest.mark.parametrize("chunk", [1, 10, 33, 100])
def test_every_chunk(chunk: int, decay: str) -> None:
    with tiles(16):
        compare(operands((2, 1, 65, 20, 24), decay), chunk)
