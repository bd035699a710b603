"""``seqmix::causal_conv1d`` on the kernels.

B batch, D channels, S sequence, W taps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.causal_conv1d import CONV_ADJOINT, CONV_FORWARD, CONV_SLOPE

__all__ = ["causal_conv1d_backward", "causal_conv1d_forward"]


def causal_conv1d_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, *, activation: str = ""
) -> tuple[Tensor, Tensor]:
    """``y [B, D, S]`` and the new tail ``[B, D, W - 1]``."""
    B, D, S = x.shape
    y, last = x.new_empty(B, D, S), tail.new_empty(tail.shape)
    arguments = _given(x, weight, bias, tail) | {"y": y, "last": last}
    constants = {"W": weight.shape[1], "SILU": activation == "silu"}
    CONV_FORWARD.launch(_grid(B, D, S), x.dtype, arguments, constants)
    return y, last


def causal_conv1d_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    activation: str = "",
) -> list[Tensor | None]:
    """Gradients of x, weight, bias and tail."""
    x, weight, tail = (t for i, t in enumerate(operands) if i != 2 and t is not None)
    bias = operands[2]
    slope, dweight, dbias = _slope(grads[0].contiguous(), x, weight, bias, tail, activation, needs)
    (B, D, S), W = x.shape, weight.shape[1]
    dx, dtail = x.new_empty(B, D, S), tail.new_empty(tail.shape)
    arguments = {
        "slope": slope, "weight": weight.contiguous(), "dlast": grads[1].contiguous(), "dx": dx,
        "dtail": dtail, "S": S, "D": D,
    }  # fmt: skip
    CONV_ADJOINT.launch(_grid(B, D, S + W - 1), x.dtype, arguments, {"W": W})
    return [dx, dweight, dbias, dtail]


def _slope(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tail: Tensor,
    activation: str,
    needs: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradient before the activation, and those of the parameters that want one."""
    (B, D, S), W = x.shape, weight.shape[1]
    wide, silu = torch.promote_types(x.dtype, torch.float32), activation == "silu"
    of_bias = bias is not None and needs[2]
    if not silu and not needs[1] and not of_bias:
        return grad, None, None
    constants = {"W": W, "SILU": silu}
    tokens = CONV_SLOPE.choose(x.dtype, constants).tiles["BLOCK_S"]
    parts = B * triton.cdiv(S, tokens)
    slope = x.new_empty(B, D, S, dtype=wide) if silu else None
    dweight = x.new_empty(parts, W, D, dtype=wide) if needs[1] else None
    dbias = x.new_empty(parts, D, dtype=wide) if of_bias else None
    arguments = _given(x, weight, bias, tail) | {
        "grad": grad, "slope": slope, "dweight": dweight, "dbias": dbias,
    }  # fmt: skip
    CONV_SLOPE.launch(_grid(B, D, S), x.dtype, arguments, constants)
    return (
        grad if slope is None else slope,
        None if dweight is None else dweight.sum(0).t().to(weight.dtype),
        None if dbias is None or bias is None else dbias.sum(0).to(bias.dtype),
    )


def _given(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> dict[str, Any]:
    return {
        "x": x, "weight": weight.contiguous(), "tail": tail.contiguous(),
        "bias": None if bias is None else bias.contiguous(),
        "x_b": x.stride(0), "x_d": x.stride(1), "x_s": x.stride(2), "S": x.shape[2],
        "D": x.shape[1],
    }  # fmt: skip


def _grid(B: int, D: int, S: int) -> Any:
    return lambda tiles: (triton.cdiv(S, tiles["BLOCK_S"]), triton.cdiv(D, tiles["BLOCK_D"]), B)
