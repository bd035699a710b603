"""Long convolutions as a Triton kernel, in the interpreter.

B batch, D channels, C filters per channel, S sequence, P past, L taps.
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from tests.backends.triton_kernels import check
from torch import Tensor

from seqmix.ops import long_conv
from seqmix_triton.config import Config
from seqmix_triton.kernels.long_conv import LONG_CONV
from seqmix_triton.ops.long_conv import long_conv_backward, long_conv_forward

SMALL = Config({"BLOCK_M": 16, "BLOCK_N": 16}, 1, 1)
F32, BF16 = torch.float32, torch.bfloat16


def drawn(
    sizes: tuple[int, int, int, int, int, int], dtype: torch.dtype = F32
) -> tuple[Tensor, Tensor, Tensor | None]:
    B, D, C, S, P, L = sizes
    torch.manual_seed(0)
    x, filter = torch.randn(B, D, S), torch.randn(C * D, L) / L**0.5
    history = torch.randn(B, D, P) if P else None
    return x.to(dtype), filter.to(dtype), None if history is None else history.to(dtype)


@pytest.mark.parametrize(
    "dtype", [F32, *(pytest.param(d, marks=pytest.mark.full) for d in (BF16, torch.float64))]
)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 2, 1, 15, 0, 15),
        (1, 2, 2, 17, 0, 40),
        (1, 2, 1, 33, 19, 5),
        (1, 1, 1, 300, 20, 310),
        pytest.param((2, 2, 3, 65, 130, 64), marks=pytest.mark.full),
    ],
)
def test_outputs_and_gradients(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    with LONG_CONV.forced(SMALL):
        check(long_conv, long_conv_forward, long_conv_backward, drawn(sizes, dtype))


def test_default_tiles_and_a_filter_of_a_wider_dtype() -> None:
    x, filter, _ = drawn((1, 2, 1, 20, 0, 20))
    check(long_conv, long_conv_forward, long_conv_backward, (x, filter, None))
    narrow, wide = x.to(BF16), torch.empty(1, 2, 20)
    import_module("seqmix_triton.ops.long_conv")._convolve(narrow, filter.unsqueeze(0), wide, 0)
    wanted = long_conv(narrow.double(), filter.double())
    torch.testing.assert_close(wide.double(), wanted, rtol=1e-5, atol=1e-6)


def test_one_token_and_what_is_too_long_go_by_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("seqmix_triton.ops.long_conv")
    monkeypatch.setattr(module, "LONGEST", 8)
    monkeypatch.setattr(module, "_convolve", None)
    check(long_conv, long_conv_forward, long_conv_backward, drawn((1, 2, 1, 9, 3, 12)))
    x, filter, history = drawn((1, 2, 1, 1, 3, 12))
    assert torch.equal(long_conv_forward(x, filter, history), long_conv(x, filter, history))
