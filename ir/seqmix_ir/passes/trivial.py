"""Rules for what becomes trivial when a size is known: loops of one step, axes of one element."""

from __future__ import annotations

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import (
    Add,
    ArgMax,
    Constant,
    CumSum,
    Expand,
    Gather,
    GatherElements,
    Reduce,
    Reshape,
    Scan,
    Squeeze,
    Unsqueeze,
    constant,
)
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_ir.passes.rewrite import Rule
from seqmix_ir.types import FLOATS

__all__ = ["TRIVIAL_RULES"]


def inline_scan_of_one_step(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """A scan over sequences of length 1 is its body, on the only slice of each sequence."""
    if not isinstance(op.defn, Scan) or op.body is None:
        return None
    carries, axis = op.defn.carries, op.defn.axis
    first_constant = carries + op.defn.sequences
    sequences = op.values[carries:first_constant]
    if sequences[0].type.shape[axis] != 1:
        return None
    slices = [b(Squeeze((axis,)), s) for s in sequences]
    inputs = (*op.values[:carries], *slices, *op.values[first_constant:])
    results = _inline(b, op.body, inputs)
    stacked = (b(Unsqueeze((axis,)), y) for y in results[carries:])
    return (*results[:carries], *stacked)


def _inline(b: Builder, body: Block, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """Append the ops of a body; with new results, since several ops may share the body."""
    env = dict(zip(body.params, inputs, strict=True))
    for op in body.ops:
        operands = tuple(None if v is None else env[v] for v in op.operands)
        results = tuple(Value(v.type, v.hint) for v in op.results)
        b.append(Op(op.defn, operands, results, op.body, op.loc))
        env.update(zip(op.results, results, strict=True))
    return tuple(env[r] for r in body.results)


def reduce_one_element(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """The mean, extremum, any or all of one element is that element; its sum too.

    A float sum starts at 0: adding that keeps what becomes of ``-0.0``.
    """
    if not isinstance(op.defn, Reduce):
        return None
    (x,) = op.values
    axes = normal_axes(op.defn.axes, x.type.rank)
    if any(x.type.shape[axis] != 1 for axis in axes):
        return None
    if op.defn.kind in ("sum", "mean") and x.type.dtype in FLOATS:
        x = b(Add(), x, constant(b, 0.0, x.type.dtype))
    return (x,) if op.defn.keepdims else (b(Squeeze(axes), x),)


def accumulate_one_element(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """The running sum along an axis of size 1 is the element itself; the exclusive one is 0."""
    if not isinstance(op.defn, CumSum):
        return None
    (x,) = op.values
    if x.type.shape[normal_axis(op.defn.axis, x.type.rank)] != 1:
        return None
    return (_zeros(b, op.results[0]),) if op.defn.exclusive else (x,)


def choose_only_element(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """The largest of one element is at index 0."""
    if not isinstance(op.defn, ArgMax):
        return None
    (x,) = op.values
    if x.type.shape[normal_axis(op.defn.axis, x.type.rank)] != 1:
        return None
    return (_zeros(b, op.results[0]),)


def _zeros(b: Builder, like: Value) -> Value:
    return b(Expand(like.type.shape), constant(b, 0, like.type.dtype))


def gather_only_element(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """An index into an axis of size 1 names what is there, without the axis or as often as asked.

    Of indices that must be in range there is but one, so that ``gather_elements`` need not know
    them.
    """
    if not isinstance(op.defn, Gather | GatherElements):
        return None
    data, indices = op.values
    axis = normal_axis(op.defn.axis, data.type.rank)
    if data.type.shape[axis] != 1:
        return None
    result = op.results[0].type
    if isinstance(op.defn, GatherElements):
        others = (n for i, n in enumerate(data.type.shape) if i != axis)
        taken = (n for i, n in enumerate(result.shape) if i != axis)
        return (b(Expand(result.shape), data),) if tuple(others) == tuple(taken) else None
    producer = b.producer(indices, Constant)
    if producer is None or not _first_only(producer):
        return None
    ones = (1,) * indices.type.rank
    shape = (*data.type.shape[:axis], *ones, *data.type.shape[axis + 1 :])
    return (b(Expand(result.shape), b(Reshape(shape), data)),)


def _first_only(producer: Op) -> bool:
    """Whether a constant holds 0 alone, or -1, which counts from the end of a single element."""
    pending = [producer.defn.attributes()["value"]]
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending.extend(value)
        elif value not in (0, -1):
            return False
    return True


TRIVIAL_RULES: tuple[Rule, ...] = (
    inline_scan_of_one_step,
    reduce_one_element,
    accumulate_one_element,
    choose_only_element,
    gather_only_element,
)
