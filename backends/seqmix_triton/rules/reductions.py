"""Reductions and running reductions over axes, in torch, which sums 16 bits in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqmix_ir.graph import Op
from seqmix_triton.rules.wide import widened
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES"]


def _reduce(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    axes = tuple(axis % x.ndim for axis in defn.axes)
    if defn.kind in ("max", "min"):
        return _extremum(x, axes, defn.keepdims, highest=defn.kind == "max")
    if defn.kind in ("any", "all"):
        function: Callable[..., Tensor] = getattr(torch, defn.kind)
        return function(x, axes, keepdim=defn.keepdims)
    wide = widened(x, defn.accumulate)
    if defn.kind == "prod":
        return _product(wide, axes, defn.keepdims)
    function = getattr(torch, defn.kind)
    return function(wide, axes, keepdim=defn.keepdims)


def _extremum(x: Tensor, axes: tuple[int, ...], keepdims: bool, *, highest: bool) -> Tensor:
    if all(x.shape[axis] for axis in axes):
        function = torch.amax if highest else torch.amin
        return function(x, axes, keepdim=keepdims)
    # torch has no extremum of nothing.
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return x.new_full(shape, _lowest(x.dtype) if highest else _highest(x.dtype))


def _product(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


def _softmax(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return torch.softmax(widened(x, defn.accumulate), defn.axis)


def _running(
    function: Callable[[Tensor, int], Tensor], neutral: Callable[[torch.dtype], float]
) -> Rule:
    """A running reduction from either end, with the element itself or without."""

    def rule(run: GraphRun, op: Op, x: Tensor) -> Tensor:
        defn: Any = op.defn
        axis = defn.axis % x.ndim
        wide = widened(x, defn.accumulate)
        y = wide.flip(axis) if defn.reverse else wide
        y = function(y, axis) if y.numel() else y
        if defn.exclusive and y.shape[axis]:
            start = torch.full_like(y.narrow(axis, 0, 1), neutral(y.dtype))
            y = torch.cat([start, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
        return y.flip(axis) if defn.reverse else y

    return rule


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


RULES: Mapping[str, Rule] = {
    "cummax": _running(lambda x, axis: torch.cummax(x, axis).values, _lowest),
    "cummin": _running(lambda x, axis: torch.cummin(x, axis).values, _highest),
    "cumprod": _running(torch.cumprod, lambda dtype: 1),
    "cumsum": _running(torch.cumsum, lambda dtype: 0),
    "logcumsumexp": _running(torch.logcumsumexp, lambda dtype: -math.inf),
    "reduce": _reduce,
    "softmax": _softmax,
}
