"""Norms, rotation, short convolutions and scans as Triton kernels, in the interpreter.

B batch, H heads, S sequence, K head size, R rotated size, D channels, W taps.
"""

from __future__ import annotations

import pytest
import torch
from tests.backends.triton_kernels import check, close, poisoned
from torch import Tensor

from seqmix.ops import causal_conv1d, linear_scan, rotary
from seqmix_triton.kernel import Config
from seqmix_triton.kernels.linear_scan import SCAN_BACKWARD, SCAN_FORWARD
from seqmix_triton.ops import norm
from seqmix_triton.ops.causal_conv1d import causal_conv1d_backward, causal_conv1d_forward
from seqmix_triton.ops.linear_scan import linear_scan_backward, linear_scan_forward
from seqmix_triton.ops.norm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from seqmix_triton.ops.rotary import rotary_backward, rotary_forward

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
DTYPES = [F32, *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (BF16, F16, F64))]
LONGER = [(1, 2, 2, 4), (2, 9, 17, 3), (1, 2, 140, 1)]
SHAPES = [(1, 7), (2, 17, 24), pytest.param((33, 600), marks=pytest.mark.full)]


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # Few enough that each takes several blocks of rows.
    monkeypatch.setattr(norm, "_PROGRAMS", 3)


def drawn(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape).to(dtype)


def turned(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    """As a mixer hands it over: two axes exchanged in memory."""
    return drawn(*shape[:-2], shape[-1], shape[-2], dtype=dtype).transpose(-1, -2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, grad = (drawn(*s, dtype=dtype) for s in (shape, shape[-1:], shape))

    def forward(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return rms_norm_forward(x, weight, eps=1e-5)

    def reference(x: Tensor, weight: Tensor | None) -> Tensor:
        return torch.nn.functional.rms_norm(x, shape[-1:], weight, 1e-5)

    def backward(grads, operands, outputs, needs):
        return rms_norm_backward(grads[0], *operands, outputs[1])

    check(reference, forward, backward, (x, weight))
    check(reference, forward, backward, (grad, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = (drawn(*s, dtype=dtype) for s in (shape, shape[-1:], shape[-1:]))

    def forward(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        return layer_norm_forward(x, *parameters, eps=1e-5)

    def reference(x: Tensor, *parameters: Tensor | None) -> Tensor:
        return torch.nn.functional.layer_norm(x, shape[-1:], *parameters, 1e-5)

    def backward(grads, operands, outputs, needs):
        x, weight, bias = operands
        return layer_norm_backward(grads[0], x, weight, *outputs[1:], has_bias=bias is not None)

    check(reference, forward, backward, (x + 3, weight, bias))
    check(reference, forward, backward, (x, weight, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 8, 8), (2, 2, 17, 24, 20), (1, 2, 65, 6, 2)])
def test_rotary(sizes: tuple[int, ...], interleaved: bool, dtype: torch.dtype) -> None:
    B, H, S, K, R = sizes
    angle = torch.randn(B, S, R // 2)
    wide = torch.promote_types(dtype, F32)
    x = drawn(B, S, H, K, dtype=dtype).transpose(1, 2)
    tables = (angle.cos().to(wide), angle.sin().to(wide))
    check(
        rotary, rotary_forward, rotary_backward, (x, *tables), interleaved=interleaved
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [pytest.param("", marks=pytest.mark.full), "silu"])
@pytest.mark.parametrize(
    "sizes",
    [(1, 3, 1, 4), (1, 2, 9, 4), *(pytest.param(s, marks=pytest.mark.full) for s in LONGER)],
)
def test_causal_conv1d(sizes: tuple[int, ...], activation: str, dtype: torch.dtype) -> None:
    B, D, S, W = sizes
    weight, bias = drawn(D, W, dtype=dtype), drawn(D, dtype=dtype)
    x, tail = turned(B, D, S, dtype=dtype), drawn(B, D, W - 1, dtype=dtype)
    for given in (bias, None):
        check(
            causal_conv1d, causal_conv1d_forward, causal_conv1d_backward,
            (x, weight, given, tail), activation=activation,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("semiring", ["plus_times", "max_plus"])
@pytest.mark.parametrize("S", [1, 17, pytest.param(65, marks=pytest.mark.full)])
def test_linear_scan(S: int, semiring: str, dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, F32)
    a, b, initial = drawn(2, S, 5, dtype=dtype), drawn(2, S, 5, dtype=dtype), drawn(2, 5)
    a = -a.abs() if semiring == "max_plus" else a.sigmoid()
    # Every other channel starts with nothing.
    if semiring == "max_plus":
        initial[:, ::2] = -torch.inf
    tiles = Config({"BLOCK_S": 8, "BLOCK_D": 4})
    with SCAN_FORWARD.forced(tiles), SCAN_BACKWARD.forced(tiles):
        check(
            linear_scan, linear_scan_forward, linear_scan_backward,
            (a, b, initial.to(wide)), semiring=semiring,
        )  # fmt: skip


def test_offsets_beyond_31_bits() -> None:
    # The memory is never touched, but for the two places read.
    far = torch.empty(2**31 + 4096, dtype=F16)
    x = far.as_strided((2, 1, 3, 8), (2**31, 8, 8, 1))
    x.copy_(drawn(2, 1, 3, 8))
    angle = torch.randn(2, 3, 4)
    with poisoned():
        found = rotary_forward(x, angle.cos(), angle.sin())
    close(found, rotary(x.double(), angle.cos().double(), angle.sin().double()), "far rows")
