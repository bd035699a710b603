"""What type inference checks again and again; every failure names both sides, axis and sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from seqmix_ir.dims import Size, show_size
from seqmix_ir.errors import IRError
from seqmix_ir.types import FLOATS, INTEGERS, TensorType

__all__ = [
    "NUMBERS",
    "SIGNED",
    "broadcast_shapes",
    "expect_dtype",
    "expect_rank",
    "expect_shape",
    "expect_sizes",
    "normal_axes",
    "normal_axis",
    "same_dtype",
    "show_shape",
]

NUMBERS = FLOATS | INTEGERS
SIGNED = NUMBERS - {"u8"}
_ORDER = ("f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool")


def expect_dtype(name: str, type: TensorType, allowed: Collection[str]) -> None:
    """IRError unless the dtype of operand ``name`` is one of ``allowed``."""
    if type.dtype not in allowed:
        known = ", ".join(d for d in _ORDER if d in allowed)
        raise IRError(f"operand '{name}' is {type}, expected dtype {known}; cast it first")


def same_dtype(**operands: TensorType | None) -> None:
    """IRError unless all operands that are present have one dtype."""
    present = {n: t for n, t in operands.items() if t is not None}
    first, *rest = present.items()
    for name, type in rest:
        if type.dtype != first[1].dtype:
            raise IRError(
                f"dtypes differ: '{first[0]}' is {first[1]}, '{name}' is {type}; cast one of them"
            )


def expect_rank(name: str, type: TensorType, rank: int, layout: str) -> None:
    """IRError unless operand ``name`` has ``rank`` axes; ``layout`` such as ``[B, S, K]`` helps."""
    if type.rank != rank:
        raise IRError(f"operand '{name}' is {type} of rank {type.rank}, expected {layout}")


def expect_sizes(name: str, type: TensorType, sizes: dict[int, Size], why: str) -> None:
    """IRError unless the given axes of ``type`` have the given sizes; ``why`` says who asks."""
    for axis, size in sizes.items():
        if type.shape[axis] != size:
            raise IRError(
                f"axis {axis} of '{name}' ({type}) is {type.shape[axis]}, expected {size} ({why})"
            )


def expect_shape(name: str, type: TensorType, shape: tuple[Size, ...], why: str) -> None:
    """IRError unless ``type`` has exactly ``shape``."""
    expect_rank(name, type, len(shape), show_shape(shape))
    expect_sizes(name, type, dict(enumerate(shape)), why)


def normal_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front; IRError when it is out of range."""
    if not -rank <= axis < rank:
        raise IRError(f"axis {axis} is out of range for rank {rank} ({-rank} to {rank - 1})")
    return axis % rank


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted axes counted from the front; IRError when one is out of range or named twice."""
    normal = sorted(normal_axis(axis, rank) for axis in axes)
    if len(set(normal)) != len(normal):
        raise IRError(f"axes {tuple(axes)} name one axis of rank {rank} twice")
    return tuple(normal)


def broadcast_shapes(**operands: TensorType) -> tuple[Size, ...]:
    """The numpy broadcast of all operands' shapes; IRError names the pair that does not fit."""
    rank = max(t.rank for t in operands.values())
    shape: list[Size] = [1] * rank
    owner: list[str] = [""] * rank
    for name, type in operands.items():
        for axis, size in enumerate(type.shape, start=rank - type.rank):
            if shape[axis] == 1:
                shape[axis], owner[axis] = size, name
            elif size not in (1, shape[axis]):
                other = operands[owner[axis]]
                raise IRError(
                    f"cannot broadcast '{owner[axis]}' ({other}) with '{name}' ({type}): "
                    f"axis {axis - rank} is {shape[axis]} and {size}"
                )
    return tuple(shape)


def show_shape(shape: tuple[Size, ...]) -> str:
    """Text such as ``[B, S, 64]``."""
    return f"[{', '.join(map(show_size, shape))}]"
