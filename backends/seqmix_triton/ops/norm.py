"""RMS and layer normalization over the last axis, forward and backward.

D size of the last axis, N rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.norm import NORM_BACKWARD, NORM_FORWARD

__all__ = [
    "layer_norm_backward",
    "layer_norm_forward",
    "rms_norm_backward",
    "rms_norm_forward",
]

_PROGRAMS = 256
"""Programs of the backward pass, each with its own sum of the parameters' gradients."""


def rms_norm_forward(x: Tensor, weight: Tensor | None, *, eps: float) -> tuple[Tensor, Tensor]:
    """``x / sqrt(mean(x^2) + eps) * weight [D]``, and the factors ``[N]`` for the backward pass."""
    y, _, scale = _forward(x, weight, None, eps, centred=False)
    return y, scale


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, scale: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the weight."""
    dx, dweight, _ = _backward(grad, x, weight, None, scale, has_bias=False)
    return dx, dweight


def layer_norm_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, then means and factors ``[N]``."""
    return _forward(x, weight, bias, eps, centred=True)


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    *,
    has_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, of the weight, and of the bias if there was one."""
    return _backward(grad, x, weight, mean, scale, has_bias=has_bias)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x = x.contiguous()
    D = x.shape[-1]
    rows = x.numel() // max(1, D)
    y = torch.empty_like(x)
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = x.new_empty(rows, dtype=wide)
    mean = x.new_empty(rows, dtype=wide) if centred else None
    arguments: dict[str, Any] = {
        "x": x, "weight": _flat(weight), "bias": _flat(bias), "y": y, "mean": mean,
        "scale": scale, "rows": rows,
    }  # fmt: skip
    NORM_FORWARD.launch(
        lambda tiles: (triton.cdiv(rows, tiles["BLOCK_R"]),),
        x.dtype,
        arguments,
        {"D": D, "EPS": eps, "CENTRED": centred},
    )
    return y, scale if mean is None else mean, scale


def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    scale: Tensor,
    *,
    has_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    grad, x = grad.contiguous(), x.contiguous()
    D, rows = x.shape[-1], scale.numel()
    dx = torch.empty_like(x)
    programs = min(_PROGRAMS, rows)
    dweight = None if weight is None else scale.new_zeros(programs, D)
    dbias = scale.new_zeros(programs, D) if has_bias else None
    arguments: dict[str, Any] = {
        "grad": grad, "x": x, "weight": _flat(weight), "mean": mean, "scale": scale, "dx": dx,
        "dweight": dweight, "dbias": dbias, "rows": rows,
    }  # fmt: skip
    NORM_BACKWARD.launch(
        lambda tiles: (min(programs, triton.cdiv(rows, tiles["BLOCK_R"])),),
        x.dtype,
        arguments,
        {"D": D, "CENTRED": mean is not None},
    )
    given = x.dtype if weight is None else weight.dtype
    return dx, _total(dweight, given), _total(dbias, given)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _total(parts: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parts is None else parts.sum(0).to(dtype)
