"""Rules of ops that move elements: shapes, pieces, indices."""

from __future__ import annotations

from seqmix_ir import ops
from seqmix_ir.adjoint.table import reshaped, rule, size_of, sum_to, zeros
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis

__all__: list[str] = []


@rule(ops.Reshape, ops.Unsqueeze, ops.Squeeze)
def _reshape(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return (reshaped(b, g, op.values[0].type.shape),)


@rule(ops.Transpose)
def _transpose(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    rank = g.type.rank
    perm = [normal_axis(axis, rank) for axis in op.defn.attributes()["perm"]]
    return (b(ops.Transpose(tuple(perm.index(i) for i in range(rank))), g),)


@rule(ops.Expand)
def _expand(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return (sum_to(b, g, op.values[0].type.shape),)


@rule(ops.Concat)
def _concat(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    axis, start = normal_axis(op.defn.attributes()["axis"], g.type.rank), 0
    found: list[Value | None] = []
    place: Size = start
    for x in op.values:
        stop = place + x.type.shape[axis]
        found.append(b(ops.Slice(axis, place, stop), g))
        place = stop
    return tuple(found)


@rule(ops.Slice)
def _slice(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """The elements back at their places, zeros elsewhere."""
    x, defn = op.values[0], op.defn
    if not isinstance(defn, ops.Slice):
        raise IRError(f"{op.loc}: '{op.name}' is no slice")
    axis, length = normal_axis(defn.axis, x.type.rank), x.type.shape[defn.axis]
    if defn.step == 1:
        return (b(ops.Pad(axis, defn.start, length - defn.stop), g),)
    if g.type.shape[axis] == 0:
        return (zeros(b, x.type),)
    spread = _spread(b, g, axis, defn.step)
    end = spread.type.shape[axis] - defn.step + 1
    kept = b(ops.Slice(axis, 0, end), spread)
    return (b(ops.Pad(axis, defn.start, length - defn.start - end), kept),)


def _spread(b: Builder, x: Value, axis: int, step: int) -> Value:
    """Each element followed by ``step - 1`` zeros."""
    shape = x.type.shape
    wide = b(ops.Pad(axis + 1, 0, step - 1), b(ops.Unsqueeze((axis + 1,)), x))
    return b(ops.Reshape((*shape[:axis], shape[axis] * step, *shape[axis + 1 :])), wide)


@rule(ops.Pad)
def _pad(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    x, defn = op.values[0], op.defn
    if not isinstance(defn, ops.Pad):
        raise IRError(f"{op.loc}: '{op.name}' is no pad")
    axis = normal_axis(defn.axis, x.type.rank)
    return (b(ops.Slice(axis, defn.before, defn.before + x.type.shape[axis]), g),)


@rule(ops.Gather)
def _gather(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """What was picked several times adds up."""
    data, indices = op.values
    axis = normal_axis(op.defn.attributes()["axis"], data.type.rank)
    shape = data.type.shape
    rest = (*shape[:axis], *shape[axis + 1 :])
    count = size_of(indices.type.shape)
    flat = reshaped(b, g, (*shape[:axis], count, *shape[axis + 1 :]))
    order = (*(i for i in range(data.type.rank) if i != axis), axis)
    updates = b(ops.Transpose(order), flat)
    where = b(ops.Expand((*rest, count)), reshaped(b, indices, (count,)))
    base = zeros(b, data.type.with_shape((*rest, shape[axis])))
    total = b(ops.ScatterElements(-1, "add"), base, where, updates)
    return b(ops.Transpose(tuple(order.index(i) for i in range(len(order)))), total), None


@rule(ops.GatherElements)
def _gather_elements(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    data, indices = op.values
    axis = op.defn.attributes()["axis"]
    add = ops.ScatterElements(axis, "add")
    return b(add, zeros(b, data.type), indices, g), None


@rule(ops.ScatterElements)
def _scatter_elements(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    _, indices, updates = op.values
    defn = op.defn
    if not isinstance(defn, ops.ScatterElements):
        raise IRError(f"{op.loc}: '{op.name}' is no scatter_elements")
    picked = b(ops.GatherElements(defn.axis), g, indices)
    if defn.reduction == "add":
        return g, None, picked
    if defn.reduction == "none":
        kept = b(ops.ScatterElements(defn.axis), g, indices, zeros(b, updates.type))
        return kept, None, picked
    raise IRError(
        f"{op.loc}: '{op.name}' with reduction {defn.reduction!r} has no gradient; use "
        "'none' or 'add', or maximum of whole tensors"
    )
