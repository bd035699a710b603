"""Rules for convolution along one axis, and for windows that slide along one."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import Add, Conv1d, Gather, Iota, Mul, Reduce, Squeeze, Transpose, Unsqueeze

__all__: list[str] = []


@aten("conv1d", "conv1d.padding")
def _conv1d(
    c: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    stride, dilation = _only(stride), _only(dilation)
    reach = weight.type.shape[2] - 1
    before, after = _margins(c, padding, dilation * reach)
    return _convolved(c, x, weight, bias, Conv1d(stride, dilation, groups, before, after))


@aten("convolution")
def _convolution(
    c: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    if transposed or weight.type.rank != 3:
        raise c.refuse(
            f"of convolutions the IR has those along one axis, not {weight.type}",
            "fold the other axes into the batch or the channels",
        )
    return _conv1d(c, x, weight, bias, stride, padding, dilation, groups)


def _convolved(c: Call, x: Value, weight: Value, bias: Value | None, defn: Conv1d) -> Value:
    if x.type.rank == 3:
        return c.b(defn, x, weight, bias)
    y = c.b(defn, c.b(Unsqueeze((0,)), x), weight, bias)
    return c.b(Squeeze((0,)), y)


def _margins(c: Call, padding: Any, reach: Size) -> tuple[int, int]:
    """Zeros before and after; an odd one of ``same`` goes to the end."""
    if padding == "valid":
        return 0, 0
    if padding != "same":
        width = _only(padding)
        return width, width
    if not isinstance(reach, int):
        raise c.refuse(f"padding='same' with {reach} + 1 taps", "pad by a number")
    return reach // 2, reach - reach // 2


def _only(value: Any) -> Any:
    """The one entry of a list that torch may shorten to a number."""
    return value[0] if isinstance(value, list | tuple) else value


@aten("unfold")
def _unfold(c: Call, x: Value, axis: int, size: int, step: int) -> Value:
    axis = axis % x.type.rank
    windows = _windows(c, x, axis, size, step, c.shape[axis])
    rank = windows.type.rank
    order = (*range(axis + 1), *range(axis + 2, rank), axis + 1)
    return windows if order == tuple(range(rank)) else c.b(Transpose(order), windows)


@aten("avg_pool1d")
def _avg_pool1d(
    c: Call,
    x: Value,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    return _pooled(c, "mean", x, _only(size), stride, padding, ceil_mode)


@aten("max_pool1d")
def _max_pool1d(
    c: Call,
    x: Value,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    if _only(dilation) != 1:
        raise c.refuse("pooling with a dilation is not in the IR", "use dilation=1")
    return _pooled(c, "max", x, _only(size), stride, padding, ceil_mode)


def _pooled(
    c: Call, kind: str, x: Value, size: int, stride: Any, padding: Any, ceil_mode: bool
) -> Value:
    if _only(padding) != 0 or ceil_mode:
        raise c.refuse("pooling beyond the ends is not in the IR", "pad before, without ceil_mode")
    axis = x.type.rank - 1
    step = _only(stride) if stride else size
    windows = _windows(c, x, axis, size, step, c.shape[-1])
    return c.b(Reduce(kind, (axis + 1,), False), windows)


def _windows(c: Call, x: Value, axis: int, size: int, step: int, count: Size) -> Value:
    """``axis`` as ``count`` windows of ``size`` elements, each ``step`` after the last."""
    starts = c.b(Mul(), c.b(Iota(count)), c.scalar(step, "i64"))
    places = c.b(Add(), c.b(Unsqueeze((1,)), starts), c.b(Iota(size)))
    return c.b(Gather(axis), x, places)
