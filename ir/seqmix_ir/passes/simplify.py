"""The named rules of canonical form, each small enough to read at a glance."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops import (
    Add,
    ArgMax,
    Cast,
    ClipGradient,
    Concat,
    Constant,
    CumSum,
    Div,
    Expand,
    Gather,
    GatherElements,
    Mul,
    Neg,
    Not,
    Pad,
    Reduce,
    Reshape,
    ScatterElements,
    Slice,
    Softmax,
    Squeeze,
    Sub,
    Transpose,
    Unsqueeze,
    Where,
)
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_ir.passes.rewrite import Rule
from seqmix_ir.types import FLOATS

__all__ = ["NAMED_RULES"]

_NEUTRAL: dict[type, tuple[float, tuple[int, ...]]] = {
    Add: (-0.0, (0, 1)),
    Sub: (0.0, (1,)),
    Mul: (1.0, (0, 1)),
    Div: (1.0, (1,)),
}
"""Per op: the number that changes nothing, and the operands at which it changes nothing.

Of floats, ``-0.0 + 0.0`` and ``-0.0 - -0.0`` are ``0.0``: the sign of the number counts.
"""


_WITH_AXES = (
    ArgMax,
    Concat,
    CumSum,
    Gather,
    GatherElements,
    Pad,
    Reduce,
    ScatterElements,
    Slice,
    Softmax,
    Squeeze,
    Unsqueeze,
)
"""Ops whose axes count from the rank of the first operand (unsqueeze: of the result)."""


def drop_neutral_operand(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """``x - 0.0``, ``x * 1`` and ``x / 1`` are x; ``x + 0`` of integers, ``x + -0.0`` of floats."""
    if (rule := _NEUTRAL.get(type(op.defn))) is None:
        return None
    number, places = rule
    for place in places:
        producer = b.producer(op.operands[place], Constant)
        other = op.operands[1 - place]
        if producer is None or other is None or other.type != op.results[0].type:
            continue
        if _is_number(producer.defn.attributes()["value"], number, other.type.dtype):
            return (other,)
    return None


def _is_number(value: object, number: float, dtype: str) -> bool:
    """Whether a literal is the scalar ``number``; of floats, with its sign."""
    if isinstance(value, tuple | bool) or not isinstance(value, int | float) or value != number:
        return False
    return dtype not in FLOATS or math.copysign(1.0, value) == math.copysign(1.0, number)


def drop_same_type(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Cast to the same dtype; reshape or expand to the same shape."""
    if not isinstance(op.defn, Cast | Reshape | Expand):
        return None
    (x,) = op.values
    return (x,) if x.type == op.results[0].type else None


def drop_whole_slice(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """A slice of everything, by whatever step it goes through one element; a pad by nothing."""
    match op.defn:
        case Slice(start=0) | Pad(before=0, after=0):
            return op.values if op.values[0].type == op.results[0].type else None
        case _:
            return None


def drop_clip_gradient(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Forward, clip_gradient is the identity."""
    return op.values if isinstance(op.defn, ClipGradient) else None


def drop_concat_of_one(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Concatenating one tensor gives it back."""
    return op.values if isinstance(op.defn, Concat) and len(op.operands) == 1 else None


def drop_concat_of_nothing(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Operands of size 0 add nothing to a concat."""
    if not isinstance(op.defn, Concat):
        return None
    axis = normal_axis(op.defn.axis, op.results[0].type.rank)
    kept = [v for v in op.values if v.type.shape[axis] != 0]
    if len(kept) == len(op.operands) or not kept:
        return None
    return (b(op.defn, *kept),)


def join_reshapes(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """A reshape of a reshape is one reshape."""
    if not isinstance(op.defn, Reshape):
        return None
    inner = b.producer(op.operands[0], Reshape)
    return None if inner is None else (b(op.defn, *inner.operands),)


def join_expands(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """An expand of an expand is one expand."""
    if not isinstance(op.defn, Expand):
        return None
    inner = b.producer(op.operands[0], Expand)
    return None if inner is None else (b(op.defn, *inner.operands),)


def join_transposes(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Transposes compose; one that moves nothing goes."""
    if not isinstance(op.defn, Transpose):
        return None
    (x,) = op.values
    perm = normal_axes_in_order(op.defn.perm, x.type.rank)
    if perm == tuple(range(len(perm))):
        return (x,)
    if (inner := b.producer(x, Transpose)) is None:
        return None
    first = normal_axes_in_order(inner.defn.attributes()["perm"], x.type.rank)
    return (b(Transpose(tuple(first[axis] for axis in perm)), *inner.operands),)


def normal_axes_in_order(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The axes counted from the front, in the order given."""
    return tuple(normal_axis(axis, rank) for axis in axes)


def undo_unsqueeze(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Squeezing the axes that were just added, or adding those just squeezed, gives x back."""
    if not isinstance(op.defn, Squeeze | Unsqueeze):
        return None
    opposite = Unsqueeze if isinstance(op.defn, Squeeze) else Squeeze
    if (inner := b.producer(op.operands[0], opposite)) is None:
        return None
    return inner.values if _axes(inner) == _axes(op) else None


def _axes(op: Op) -> tuple[int, ...]:
    """The axes of a squeeze or unsqueeze, counted on its longer side."""
    axes: tuple[int, ...] = op.defn.attributes()["axes"]
    return normal_axes(axes, max(op.values[0].type.rank, op.results[0].type.rank))


def undo_twice(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Two negations cancel."""
    if not isinstance(op.defn, Neg | Not):
        return None
    inner = b.producer(op.operands[0], type(op.defn))
    return None if inner is None else inner.values


def subtract_directly(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """``x + -y`` and ``-y + x`` are ``x - y``, ``x - -y`` is ``x + y``, all to the last bit."""
    if not isinstance(op.defn, Add | Sub):
        return None
    x, y = op.values
    if (negated := b.producer(y, Neg)) is not None:
        return (b(Sub() if isinstance(op.defn, Add) else Add(), x, *negated.operands),)
    if isinstance(op.defn, Add) and (negated := b.producer(x, Neg)) is not None:
        return (b(Sub(), y, *negated.operands),)
    return None


def swap_branches(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """``where`` by a negation is ``where`` by what it negates, the branches swapped."""
    if not isinstance(op.defn, Where):
        return None
    condition, yes, no = op.values
    negated = b.producer(condition, Not)
    return None if negated is None else (b(Where(), *negated.operands, no, yes),)


def choose_known_branch(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """``where`` with a constant condition, or with one value on both branches, is that branch."""
    if not isinstance(op.defn, Where):
        return None
    condition, yes, no = op.values
    producer = b.producer(condition, Constant)
    if yes is no:
        branch = yes
    elif producer is None or len(known := _scalars(producer.defn.attributes()["value"])) != 1:
        return None
    else:
        branch = yes if True in known else no
    return (branch,) if branch.type == op.results[0].type else None


def _scalars(value: object) -> set[object]:
    """The distinct scalars of a literal."""
    return {s for item in value for s in _scalars(item)} if isinstance(value, tuple) else {value}


def count_axes_from_the_front(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Negative axes of core ops become axes counted from the front."""
    if isinstance(op.defn, Transpose):
        perm = normal_axes_in_order(op.defn.perm, op.values[0].type.rank)
        return None if perm == op.defn.perm else (b(Transpose(perm), *op.operands),)
    if not isinstance(op.defn, _WITH_AXES):
        return None
    attributes = op.defn.attributes()
    rank = _counted_rank(op)
    axis, axes = attributes.get("axis"), attributes.get("axes")
    if isinstance(axis, int) and axis < 0:
        attributes["axis"] = normal_axis(axis, rank)
    elif isinstance(axes, tuple) and any(a < 0 for a in axes):
        attributes["axes"] = normal_axes(axes, rank)
    else:
        return None
    return b.emit(type(op.defn)(**attributes), *op.operands, body=op.body)


def _counted_rank(op: Op) -> int:
    """The rank that negative axes of an op count from."""
    if isinstance(op.defn, Unsqueeze):
        return op.results[0].type.rank
    return op.values[0].type.rank


NAMED_RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        drop_neutral_operand,
        drop_same_type,
        drop_whole_slice,
        drop_clip_gradient,
        drop_concat_of_one,
        drop_concat_of_nothing,
        join_reshapes,
        join_expands,
        join_transposes,
        undo_unsqueeze,
        undo_twice,
        subtract_directly,
        swap_branches,
        choose_known_branch,
        count_axes_from_the_front,
    )
}
