"""Rules for shape, order of axes, slices and joins."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix.dtypes import dtype_name
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size, maximum_size, minimum_size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Expand,
    Gather,
    Iota,
    Reshape,
    Slice,
    Squeeze,
    Sub,
    Transpose,
    Unsqueeze,
    size_value,
)

__all__ = ["from_front", "reversed_axis"]


@aten(
    "clone",
    "contiguous",
    "detach",
    "detach_",
    "alias",
    "lift_fresh",
    "lift_fresh_copy",
    "dropout",
    "resolve_conj",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
    "positive",
)
def _same(c: Call, x: Value, *rest: Any, **options: Any) -> Value:
    if "dropout" in str(c.node.target) and rest[1] and rest[0]:
        raise c.refuse("dropout is on", "call .eval() before capture")
    return x


@aten(
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "_to_copy",
    "type_as",
    "float",
    "_assert_tensor_metadata",
)
def _to(c: Call, x: Value, *rest: Any, **options: Any) -> Value:
    return c.cast(x, c.dtype)


@aten("view.dtype")
def _view_dtype(c: Call, x: Value, dtype: Any) -> Value:
    raise c.refuse(f"bits seen as {dtype_name(dtype)} are not in the IR", "convert with .to()")


@aten(
    "view",
    "reshape",
    "flatten.using_ints",
    "unflatten.int",
    "_unsafe_view",
    "view_as",
    "reshape_as",
    "_reshape_alias",
)
def _reshape(c: Call, x: Value, *rest: Any) -> Value:
    return x if x.type.shape == c.shape else c.b(Reshape(c.shape), x)


@aten("expand", "expand_as", "broadcast_to")
def _expand(c: Call, x: Value, *rest: Any, **options: Any) -> Value:
    return x if x.type.shape == c.shape else c.b(Expand(c.shape), x)


@aten("transpose.int", "swapaxes", "swapdims")
def _transpose(c: Call, x: Value, first: int, second: int) -> Value:
    perm = list(range(x.type.rank))
    perm[first], perm[second] = perm[second], perm[first]
    return _permuted(c, x, perm)


@aten("t", "numpy_T", "mT", "matrix_H", "adjoint")
def _turn(c: Call, x: Value) -> Value:
    perm = list(range(x.type.rank))
    return _permuted(c, x, [*perm[:-2], *reversed(perm[-2:])])


@aten("permute")
def _permute(c: Call, x: Value, perm: list[int]) -> Value:
    return _permuted(c, x, [axis % x.type.rank for axis in perm])


@aten("movedim.int", "moveaxis.int")
def _movedim(c: Call, x: Value, source: int, target: int) -> Value:
    rank = x.type.rank
    source, target = source % rank, target % rank
    if source == 0 and x in c.traces.moved and c.traces.moved[x][1] == target:
        return c.traces.moved[x][0]
    perm = [axis for axis in range(rank) if axis != source]
    perm.insert(target, source)
    out = _permuted(c, x, perm)
    if target == 0:
        c.traces.moved[out] = (x, source)
    return out


def _permuted(c: Call, x: Value, perm: list[int]) -> Value:
    """``x`` with its axes in another order; a transpose of a transpose is one, or none."""
    if (before := c.b.producer(x, Transpose)) is not None:
        inner = before.defn.attributes()["perm"]
        x, perm = before.values[0], [inner[axis] for axis in perm]
    return x if perm == list(range(len(perm))) else c.b(Transpose(tuple(perm)), x)


@aten("unsqueeze")
def _unsqueeze(c: Call, x: Value, axis: int) -> Value:
    return c.b(Unsqueeze((axis % (x.type.rank + 1),)), x)


@aten("squeeze.dim", "squeeze.dims", "squeeze")
def _squeeze(c: Call, x: Value, axes: Any = None) -> Value:
    rank = x.type.rank
    wanted = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    gone = sorted(axis % rank for axis in wanted if x.type.shape[axis] == 1)
    return c.b(Squeeze(tuple(gone)), x) if gone else x


@aten("slice.Tensor")
def _slice(
    c: Call,
    x: Value,
    axis: int = 0,
    start: Size | None = None,
    stop: Size | None = None,
    step: int = 1,
) -> Value:
    axis = axis % x.type.rank
    size, kept = x.type.shape[axis], c.shape[axis]
    if size == kept and step == 1:
        return x
    first = from_front(c, 2, start or 0, size)
    if first + kept != size:
        # Nothing says that the start lies within: clamp it as torch does.
        first = minimum_size(maximum_size(first, 0), size) if first != 0 else 0
    # What torch kept, clamped too, says where the slice stops.
    last = first + kept if step == 1 else _stop(size, stop)
    return c.b(Slice(axis, first, last, step), x)


def from_front(c: Call, place: int, index: Size, size: Size) -> Size:
    """An index (argument ``place`` of the call) counted from the front."""
    if isinstance(index, int):
        return size + index if index < 0 else index
    # The sign of a size is that of the example; torch has checked that it is always the same.
    return size + index if c.node.args[place].meta["val"].node.hint < 0 else index


def _stop(size: Size, stop: Size | None) -> Size:
    if stop is None or (isinstance(stop, int) and stop >= 1 << 62):
        return size
    if isinstance(stop, int) and stop < 0:
        return size + stop
    return min(size, stop) if isinstance(size, int) and isinstance(stop, int) else stop


@aten("narrow")
def _narrow(c: Call, x: Value, axis: int, start: Size, length: Size) -> Value:
    axis = axis % x.type.rank
    first = from_front(c, 2, start, x.type.shape[axis])
    return c.b(Slice(axis, first, first + length), x)


@aten("select.int")
def _select(c: Call, x: Value, axis: int, index: Size) -> Value:
    axis = axis % x.type.rank
    return _selected(c, x, axis, from_front(c, 2, index, x.type.shape[axis]))


def _selected(c: Call, x: Value, axis: int, first: Size) -> Value:
    return c.b(Squeeze((axis,)), c.b(Slice(axis, first, first + 1), x))


@aten("unbind.int")
def _unbind(c: Call, x: Value, axis: int = 0) -> tuple[Value, ...]:
    return tuple(_selected(c, x, axis % x.type.rank, i) for i in range(len(c.types)))


@aten("repeat_interleave.self_int")
def _repeat_interleave(
    c: Call, x: Value, repeats: int, axis: int | None = None, output_size: Any = None
) -> Value:
    if axis is None:
        x, axis = c.b(Reshape((c.shape[0] // repeats,)), x), 0  # type: ignore[operator]
    axis = axis % x.type.rank
    shape = list(x.type.shape)
    wide = c.b(Unsqueeze((axis + 1,)), x)
    wide = c.b(Expand((*shape[: axis + 1], repeats, *shape[axis + 1 :])), wide)
    return c.b(Reshape(c.shape), wide)


@aten("repeat", "tile")
def _repeat(c: Call, x: Value, repeats: list[Size]) -> Value:
    rank = len(c.shape)
    sizes = (1,) * (rank - x.type.rank) + x.type.shape
    counts = (1,) * (rank - len(repeats)) + tuple(repeats)
    pairs = [entry for pair in zip(counts, sizes, strict=True) for entry in pair]
    apart = [entry for size in sizes for entry in (1, size)]
    return c.b(Reshape(c.shape), c.b(Expand(tuple(pairs)), c.b(Reshape(tuple(apart)), x)))


@aten("flip")
def _flip(c: Call, x: Value, axes: list[int]) -> Value:
    if list(axes) == [0] and x in c.traces.flipped:
        return c.traces.flipped[x]
    out = x
    for axis in axes:
        out = reversed_axis(c.b, out, axis % x.type.rank)
    if list(axes) == [0]:
        c.traces.flipped[out] = x
    return out


def reversed_axis(b: Builder, x: Value, axis: int) -> Value:
    """``x`` with the order along one axis turned around."""
    size = x.type.shape[axis]
    last = size_value(b, size - 1, "i64")
    return b(Gather(axis), x, b(Sub(), last, b(Iota(size))))
