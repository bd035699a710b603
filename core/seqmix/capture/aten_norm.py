"""Rules for normalizations: over last axes, over groups of channels, by running statistics."""

from __future__ import annotations

from typing import Any

import torch

from seqmix.capture.aten import Call, aten
from seqmix.dtypes import torch_dtype
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Add,
    LayerNorm,
    Mul,
    Reciprocal,
    Reduce,
    Reshape,
    RmsNorm,
    Sqrt,
    Sub,
)
from seqmix_ir.ops.precision import narrow, widen

__all__: list[str] = []


@aten("rms_norm")
def _rms_norm(
    c: Call, x: Value, shape: list[Size], weight: Value | None = None, eps: float | None = None
) -> Value:
    if eps is None:
        eps = torch.finfo(torch_dtype(x.type.dtype)).eps
    flat, parameters = _joined(c, x, len(shape), weight)
    return _as(c, c.b(RmsNorm(eps), flat, *parameters), x)


@aten("layer_norm")
def _layer_norm(
    c: Call,
    x: Value,
    shape: list[Size],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> Value:
    flat, parameters = _joined(c, x, len(shape), weight, bias)
    return _as(c, c.b(LayerNorm(eps), flat, *parameters), x)


def _joined(
    c: Call, x: Value, count: int, *parameters: Value | None
) -> tuple[Value, list[Value | None]]:
    """The last ``count`` axes as one, here and in the parameters."""
    if count == 1:
        return x, list(parameters)
    kept = x.type.shape[: x.type.rank - count]
    size: Size = 1
    for axis in x.type.shape[x.type.rank - count :]:
        size = size * axis
    flat = [None if p is None else c.b(Reshape((size,)), p) for p in parameters]
    return c.b(Reshape((*kept, size)), x), flat


def _as(c: Call, y: Value, x: Value) -> Value:
    return y if y.type.shape == x.type.shape else c.b(Reshape(x.type.shape), y)


@aten("group_norm")
def _group_norm(
    c: Call,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> Value:
    N, C, *inner = x.type.shape
    if not isinstance(C, int):
        raise c.refuse(f"the number of channels {C} is not fixed", "give the channels a number")
    size: Size = C // groups
    for axis in inner:
        size = size * axis
    wide = widen(c.b, c.b(Reshape((N, groups, size)), x))
    # Not layer_norm: its axis may have any size here, which no fused kernel takes.
    gap = c.b(Sub(), wide, c.b(Reduce("mean", (2,), True), wide))
    variance = c.b(Reduce("mean", (2,), True), c.b(Mul(), gap, gap))
    y = c.b(Reshape(x.type.shape), c.b(Mul(), gap, _inverse_root(c, variance, eps)))
    return narrow(c.b, _affine(c, y, weight, bias), c.dtype)


@aten("instance_norm")
def _instance_norm(
    c: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> Value:
    if not use_input_stats:
        return _by_statistics(c, x, weight, bias, mean, variance, eps)
    channels = x.type.shape[1]
    if not isinstance(channels, int):
        raise c.refuse(f"the number of channels {channels} is not fixed", "give it a number")
    return _group_norm(c, x, channels, weight, bias, eps)


@aten("batch_norm")
def _batch_norm(
    c: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> Value:
    if training:
        raise c.refuse("batch normalization is in training", "call .eval() before capture")
    return _by_statistics(c, x, weight, bias, mean, variance, eps)


def _by_statistics(
    c: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    eps: float,
) -> Value:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` per channel, axis 1."""
    if mean is None or variance is None:
        raise c.refuse("no running statistics are given", "track them, or use a layer norm")
    y = c.b(Sub(), widen(c.b, x), widen(c.b, _column(c, mean, x)))
    scale = _inverse_root(c, widen(c.b, variance), eps)
    if weight is not None:
        scale = c.b(Mul(), scale, widen(c.b, weight))
    y = c.b(Mul(), y, _column(c, scale, x))
    return narrow(c.b, _affine(c, y, None, bias), c.dtype)


def _affine(c: Call, y: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        y = c.b(Mul(), y, widen(c.b, _column(c, weight, y)))
    return y if bias is None else c.b(Add(), y, widen(c.b, _column(c, bias, y)))


def _column(c: Call, parameter: Value, x: Value) -> Value:
    """A vector of channels, shaped to meet axis 1 of ``x``."""
    return c.b(Reshape((parameter.type.shape[0], *[1] * (x.type.rank - 2))), parameter)


def _inverse_root(c: Call, variance: Value, eps: float) -> Value:
    shifted = c.b(Add(), variance, c.scalar(eps, variance.type.dtype))
    return c.b(Reciprocal(), c.b(Sqrt(), shifted))
