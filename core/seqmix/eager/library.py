"""The functions that generated source calls: torch's own, and a few that it has no call for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["NAMES"]


def padded(x: Tensor, axis: int, before: int, after: int, value: float) -> Tensor:
    """``x`` with margins along one axis."""
    margins = (*(0, 0) * (x.ndim - 1 - axis), before, after)
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), margins, value=bool(value)).to(torch.bool)
    return F.pad(x, margins, value=value)


def softplus(x: Tensor) -> Tensor:
    """Exact in float64 too, where torch's own threshold of 20 is not."""
    return F.softplus(x, threshold=40.0)


def log_sigmoid(x: Tensor) -> Tensor:
    """``-softplus(-x)`` in one call: with beta -1, softplus divides by it too."""
    return F.softplus(x, -1.0, 40.0)


def floor_divide(x: Tensor, y: Tensor) -> Tensor:
    """``floor(x / y)``."""
    if x.is_floating_point():
        return torch.floor(x / y)
    return torch.div(x, y, rounding_mode="floor")


def product(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """The product over several axes."""
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keepdims, dtype=x.dtype)
    return x


def running(name: str, x: Tensor, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    """A running reduction from either end, with the element itself or without."""
    function, neutral = _RUNNING[name]
    y = x.flip(axis) if reverse else x
    y = function(y, axis) if y.numel() else y
    if exclusive and y.shape[axis]:
        start = torch.full_like(y.narrow(axis, 0, 1), neutral(y.dtype))
        y = torch.cat([start, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return y.flip(axis) if reverse else y


def _lowest(dtype: torch.dtype) -> float:
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


_RUNNING: Mapping[str, tuple[Any, Any]] = {
    "cummax": (lambda x, axis: torch.cummax(x, axis).values, _lowest),
    "cummin": (lambda x, axis: torch.cummin(x, axis).values, _highest),
    "cumprod": (lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype), lambda dtype: 1),
    "cumsum": (lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype), lambda dtype: 0),
    "logcumsumexp": (torch.logcumsumexp, lambda dtype: -torch.inf),
}


def _places(indices: Tensor, size: int) -> Tensor:
    """Indices from the front; those below 0 count from the end."""
    whole = indices.to(torch.int64)
    return torch.where(whole < 0, whole + size, whole)


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """``x[.., indices, ..]``."""
    picked = torch.index_select(x, axis, _places(indices, x.shape[axis]).reshape(-1))
    return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """``x[i, indices[i, j]]``."""
    return torch.gather(x, axis, _places(indices, x.shape[axis]))


def scattered(x: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    """``x`` with the updates put, added or compared at the indices."""
    where = _places(indices, x.shape[axis])
    if reduction == "add":
        return torch.scatter_add(x, axis, where, updates)
    if reduction == "max":
        return torch.scatter_reduce(x, axis, where, updates, "amax")
    return torch.scatter(x, axis, where, updates)


def first_ones(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The ``k`` first in order, equal ones by their index."""
    values, indices = torch.sort(x, stable=True, dim=axis, descending=largest)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


_OF_TORCH = (
    "abs", "acos", "acosh", "add", "addcmul", "addmm", "all", "amax", "amin", "any", "arange",
    "argmax", "argmin", "asin", "asinh", "atan", "atanh", "baddbmm", "bmm", "cat", "ceil", "clamp",
    "cos", "cosh", "div", "eq", "erf", "exp", "expm1", "floor", "greater", "greater_equal", "less",
    "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "matmul", "maximum",
    "mean", "minimum", "mm", "mul", "neg", "not_equal", "pow", "reciprocal", "relu", "remainder",
    "round", "sigmoid", "sign", "sin", "sinh", "softmax", "sqrt", "stack", "sub", "sum", "tan",
    "tanh", "tensor", "where",
)  # fmt: skip
_OWN = (
    first_ones, floor_divide, log_sigmoid, padded, product, running, scattered, softplus, take,
    take_along,
)  # fmt: skip

NAMES: Mapping[str, Any] = {
    **{name: getattr(torch, name) for name in _OF_TORCH},
    **{"gelu": F.gelu, "linear": F.linear, "silu": F.silu},
    **{function.__name__: function for function in _OWN},
}
"""What generated source may name."""
