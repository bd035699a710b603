"""Every primitive op of the IR as a function of torch: operands by position, attributes by name.

Sizes among the attributes arrive as numbers. What is not here is bound to torch by its own package,
or taken apart by seqmix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from seqmix.dtypes import torch_dtype
from torch import Tensor

__all__ = ["FORMS"]

_SAME_NAME = (
    "abs", "add", "ceil", "cos", "div", "erf", "exp", "floor", "log", "maximum", "minimum", "mul",
    "neg", "pow", "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sqrt", "sub", "tanh",
    "where", "not_equal", "greater", "greater_equal", "less", "less_equal",
)  # fmt: skip


def _constant(*, value: Any, dtype: Any) -> Tensor:
    return torch.tensor(value, dtype=torch_dtype(dtype))


def _size(*, value: int) -> Tensor:
    return torch.full((), value, dtype=torch.int64)


def _iota(*, length: int, dtype: Any) -> Tensor:
    return torch.arange(length).to(torch_dtype(dtype))


def _cast(x: Tensor, *, dtype: Any) -> Tensor:
    return x.to(torch_dtype(dtype))


def _floor_div(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.floor(x / y)
    return torch.div(x, y, rounding_mode="floor")


def _reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(shape)


def _transpose(x: Tensor, *, perm: tuple[int, ...]) -> Tensor:
    return x.permute(perm)


def _expand(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.expand(shape)


def _unsqueeze(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    return x.squeeze(tuple(axes))


def _concat(*xs: Tensor, axis: int) -> Tensor:
    return torch.cat(xs, axis)


def _slice(x: Tensor, *, axis: int, start: int, stop: int, step: int) -> Tensor:
    return x[(*[slice(None)] * (axis % x.ndim), slice(start, stop, step))]


def _pad(x: Tensor, *, axis: int, before: int, after: int, value: Any) -> Tensor:
    margins = (*(0, 0) * (x.ndim - 1 - axis % x.ndim), before, after)
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), margins, value=int(value)).to(torch.bool)
    return F.pad(x, margins, value=value)


def _gather(data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    axis = axis % data.ndim
    places = _from_the_start(indices, data.shape[axis]).reshape(-1)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return data.index_select(axis, places).reshape(shape)


def _gather_elements(data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return data.gather(axis, _from_the_start(indices, data.shape[axis]))


def _scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str
) -> Tensor:
    places = _from_the_start(indices, data.shape[axis])
    if reduction == "none":
        return data.scatter(axis, places, updates)
    kind = {"add": "sum", "max": "amax"}[reduction]
    return data.scatter_reduce(axis, places, updates, kind, include_self=True)


def _from_the_start(indices: Tensor, size: int) -> Tensor:
    wide = indices.long()
    return torch.where(wide < 0, wide + size, wide)


def _argmax(x: Tensor, *, axis: int, keepdims: bool) -> Tensor:
    return torch.argmax(x, axis, keepdim=keepdims)


def _matmul(x: Tensor, y: Tensor, *, accumulate: str) -> Tensor:
    return _accumulated(x, accumulate) @ _accumulated(y, accumulate)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, accumulate: str) -> Tensor:
    wide = [None if t is None else _accumulated(t, accumulate) for t in (x, weight, bias)]
    return F.linear(*wide)  # type: ignore[arg-type]


def _softmax(x: Tensor, *, axis: int, accumulate: str) -> Tensor:
    return torch.softmax(_accumulated(x, accumulate), axis)


def _cumsum(x: Tensor, *, axis: int, exclusive: bool, reverse: bool, accumulate: str) -> Tensor:
    wide = _accumulated(x, accumulate)
    y = (wide.flip(axis) if reverse else wide).cumsum(axis)
    if exclusive:
        y = F.pad(y, (*(0, 0) * (y.ndim - 1 - axis % y.ndim), 1, 0))
        y = y.narrow(axis, 0, x.shape[axis])
    return y.flip(axis) if reverse else y


def _reduce(
    x: Tensor, *, kind: str, axes: tuple[int, ...], keepdims: bool, accumulate: str
) -> Tensor:
    if not axes:
        return x
    if kind in ("any", "all"):
        return getattr(torch, kind)(x, tuple(axes), keepdim=keepdims)  # type: ignore[no-any-return]
    if kind in ("max", "min"):
        return _extremum(x, kind, axes, keepdims)
    wide = _accumulated(x, accumulate)
    if kind != "prod":
        return getattr(torch, kind)(wide, tuple(axes), keepdim=keepdims)  # type: ignore[no-any-return]
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        wide = torch.prod(wide, axis, keepdim=keepdims)
    return wide


def _extremum(x: Tensor, kind: str, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Along an axis of size 0 it is the least number there is, or the greatest."""
    floating = x.is_floating_point()
    info = torch.finfo(x.dtype) if floating else torch.iinfo(x.dtype)
    end = math.inf if floating else info.max
    neutral = (-math.inf if floating else info.min) if kind == "max" else end
    for axis in axes:
        margin = (*(0, 0) * (x.ndim - 1 - axis % x.ndim), 0, 1)
        x = F.pad(x, margin, value=neutral)
    return getattr(torch, f"a{kind}")(x, tuple(axes), keepdim=keepdims)  # type: ignore[no-any-return]


def _accumulated(x: Tensor, dtype: str) -> Tensor:
    """``x`` in the dtype it is added up in: float32 at least, float64 where an op asks."""
    if not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.float64 if dtype == "f64" else torch.float32)


FORMS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "and": torch.logical_and,
    "argmax": _argmax,
    "cast": _cast,
    "concat": _concat,
    "constant": _constant,
    "cumsum": _cumsum,
    "equal": torch.eq,
    "expand": _expand,
    "floor_div": _floor_div,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "iota": _iota,
    "linear": _linear,
    "matmul": _matmul,
    "mod": torch.remainder,
    "not": torch.logical_not,
    "or": torch.logical_or,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": _reshape,
    "scatter_elements": _scatter_elements,
    "size": _size,
    "slice": _slice,
    "softmax": _softmax,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
}
