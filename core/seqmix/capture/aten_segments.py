"""Rules that cut tensors into pieces along an axis, join them, and widen them by a margin."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import Concat, Pad, Slice, Unsqueeze

__all__: list[str] = []


@aten(
    "split.Tensor",
    "split.sizes",
    "split_with_sizes",
    "chunk",
    "tensor_split.sections",
    "tensor_split.indices",
    "unsafe_chunk",
    "unsafe_split.Tensor",
)
def _split(c: Call, x: Value, sizes: Any, axis: int = 0) -> tuple[Value, ...]:
    axis, start, parts = axis % x.type.rank, 0, []
    for type in c.types:
        stop: Size = start + type.shape[axis]
        parts.append(c.b(Slice(axis, start, stop), x))
        start = stop  # type: ignore[assignment]
    return tuple(parts)


@aten("cat", "concat", "concatenate")
def _cat(c: Call, xs: list[Value], axis: int = 0) -> Value:
    # torch ignores empty tensors of rank 1 here.
    kept = [c.cast(x, c.dtype) for x in xs if x.type.rank == len(c.shape)]
    return kept[0] if len(kept) == 1 else c.b(Concat(axis % len(c.shape)), *kept)


@aten("stack")
def _stack(c: Call, xs: list[Value], axis: int = 0) -> Value:
    axis = axis % len(c.shape)
    parts = [c.b(Unsqueeze((axis,)), c.cast(x, c.dtype)) for x in xs]
    return parts[0] if len(parts) == 1 else c.b(Concat(axis), *parts)


@aten("roll")
def _roll(c: Call, x: Value, shifts: Any, axes: Any = ()) -> Value:
    if not axes:
        raise c.refuse("roll without axes is not in the IR", "name the axes")
    for shift, axis in zip(_listed(shifts), _listed(axes), strict=True):
        size = x.type.shape[axis]
        if isinstance(size, Dim) and abs(shift) != 1:
            raise c.refuse(f"roll by {shift} along size {size}", "join two slices")
        cut = size - shift % size if isinstance(size, int) else (size - 1 if shift == 1 else 1)
        place = axis % x.type.rank
        x = c.b(Concat(place), c.b(Slice(place, cut, size), x), c.b(Slice(place, 0, cut), x))
    return x


@aten("pad", "constant_pad_nd")
def _pad(c: Call, x: Value, widths: list[Size], *rest: Any, **options: Any) -> Value:
    mode = next((r for r in rest if isinstance(r, str)), "constant")
    if mode != "constant":
        raise c.refuse(f"pad mode '{mode}' is not in the IR", "use mode='constant'")
    value = next((r for r in rest if isinstance(r, int | float)), 0.0)
    for pair in range(len(widths) // 2):
        axis, before, after = x.type.rank - 1 - pair, widths[2 * pair], widths[2 * pair + 1]
        x = _pad_axis(c, x, axis, before, after, float(value))
    return x


def _pad_axis(c: Call, x: Value, axis: int, before: Size, after: Size, value: float) -> Value:
    """Widen one axis; negative widths cut."""
    size = x.type.shape[axis]
    first = -before if isinstance(before, int) and before < 0 else 0
    last = size + after if isinstance(after, int) and after < 0 else size
    if first != 0 or last != size:
        x = c.b(Slice(axis, first, last), x)
    widths = [0 if isinstance(w, int) and w < 0 else w for w in (before, after)]
    return x if widths == [0, 0] else c.b(Pad(axis, widths[0], widths[1], value), x)


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
