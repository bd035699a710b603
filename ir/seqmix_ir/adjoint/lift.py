"""One op for all steps at once: the same op on values stacked along a new first axis.

``T`` steps. An operand that is the same in every step is not stacked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.arithmetic import Binary
from seqmix_ir.ops.elementwise import Unary
from seqmix_ir.ops.reduce import Place
from seqmix_ir.ops.rules import normal_axes, normal_axis

__all__ = ["Many", "can_lift", "lift", "stack"]


@dataclass(frozen=True)
class Many:
    """A value of every step: stacked along axis 0, or the same one in all."""

    value: Value
    stacked: bool


def can_lift(op: Op) -> bool:
    """Whether :func:`lift` knows the op, whichever of its operands are stacked."""
    return op.body is None and len(op.results) == 1 and _rule(op.defn) is not None


def lift(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Many:
    """The op in every step; what depends on no stacked operand stays the same in all."""
    b.loc = op.loc
    if not any(m is not None and m.stacked for m in operands):
        return Many(b(op.defn, *(None if m is None else m.value for m in operands)), False)
    rule = _rule(op.defn)
    if rule is None:
        raise IRError(f"'{op.name}' is not known for all steps at once at {op.loc}")
    return Many(rule(b, op, operands, T), True)


def stack(b: Builder, many: Many, T: Size) -> Value:
    """The value stacked, also where it is the same in all steps."""
    value = many.value
    if many.stacked:
        return value
    return b(ops.Expand((T, *value.type.shape)), value)


Rule = Callable[[Builder, Op, Sequence["Many | None"], "Size"], Value]


def _rule(defn: OpDef) -> Rule | None:
    if isinstance(defn, Unary | Binary | ops.Where | ops.Cast | ops.ClipGradient):
        return _pointwise
    return _RULES.get(type(defn)) or (_along_axis if isinstance(defn, Place) else None)


def _pointwise(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """Axes of size 1 between the steps and an operand of fewer axes than the result has."""
    rank = op.results[0].type.rank
    return b(op.defn, *(_spaced(b, m, rank) for m in operands if m is not None))


def _spaced(b: Builder, many: Many, rank: int) -> Value:
    value = many.value
    missing = rank + 1 - value.type.rank
    if not many.stacked or not missing:
        return value
    return b(ops.Unsqueeze(tuple(range(1, 1 + missing))), value)


def _present(operands: Sequence[Many | None]) -> list[Many]:
    return [m for m in operands if m is not None]


def _reshape(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    (x,) = _present(operands)
    return b(ops.Reshape((T, *op.results[0].type.shape)), x.value)


def _transpose(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    (x,) = _present(operands)
    rank = op.results[0].type.rank
    perm = (normal_axis(axis, rank) for axis in op.defn.attributes()["perm"])
    return b(ops.Transpose((0, *(axis + 1 for axis in perm))), x.value)


def _expand(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    (x,) = _present(operands)
    shape = op.results[0].type.shape
    return b(ops.Expand((T, *shape)), _spaced(b, x, len(shape)))


def _axis_of(op: Op, axis: int) -> int:
    value = op.operands[0]
    return normal_axis(axis, value.type.rank) + 1 if value is not None else axis


def _along_axis(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """Ops with one ``axis``, which the stacked axis pushes back by one."""
    defn = op.defn
    axis = _axis_of(op, defn.attributes()["axis"])
    moved = dataclasses.replace(defn, axis=axis)  # type: ignore[type-var]
    return b(moved, *(stack(b, m, T) for m in _present(operands)))


def _reduce(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    (x,) = _present(operands)
    axes = normal_axes(op.defn.attributes()["axes"], x.value.type.rank - 1)
    moved = dataclasses.replace(op.defn, axes=tuple(a + 1 for a in axes))  # type: ignore[type-var]
    return b(moved, x.value)


def _last_axis(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """Norms: their parameters must be the same in every step, else they are written out."""
    first, *rest = operands
    if first is not None and not any(m is not None and m.stacked for m in rest):
        values = (stack(b, first, T), *(None if m is None else m.value for m in rest))
        return b(op.defn, *values)
    return _decomposed(b, op, operands, T)


def _decomposed(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """The first decomposition, op by op."""
    inner = b.inside(f"{op.name}.lift")
    (style, *_) = op.defn.decompositions()
    (result,) = op.defn.decompositions()[style](inner, op)
    env: dict[Value | None, Many | None] = {None: None}
    env.update(zip(op.operands, operands, strict=True))
    for part in inner.ops:
        env[part.results[0]] = lift(b, part, [env[v] for v in part.operands], T)
    found = env[result]
    return stack(b, found, T) if found is not None else inner.ops[-1].results[0]


def _matmul(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """A matrix that is the same in every step takes the rows of all steps in one product."""
    x, y = _present(operands)
    xs, ys = x.value.type.shape, y.value.type.shape
    if x.stacked and not y.stacked and len(ys) > 2 and xs[1:-2] == ys[:-2]:
        lead, rows = ys[:-2], xs[-2]
        n = len(lead)
        first = b(ops.Transpose((*range(1, n + 1), 0, n + 1, n + 2)), x.value)
        flat = b(ops.Reshape((*lead, T * rows, xs[-1])), first)
        out = b(ops.Reshape((*lead, T, rows, ys[-1])), b(op.defn, flat, y.value))
        return b(ops.Transpose((n, *range(n), n + 1, n + 2)), out)
    rank = op.results[0].type.rank
    return b(op.defn, _spaced(b, x, rank), _spaced(b, y, rank))


def _linear(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    x, weight, bias = operands
    same = weight is not None and not weight.stacked and (bias is None or not bias.stacked)
    if x is not None and x.stacked and same and weight is not None:
        return b(op.defn, x.value, weight.value, None if bias is None else bias.value)
    return _decomposed(b, op, operands, T)


def _gather(b: Builder, op: Op, operands: Sequence[Many | None], T: Size) -> Value:
    """Stacked data move their axis back; stacked indices pick from data that stay the same."""
    data, indices = _present(operands)
    axis = normal_axis(op.defn.attributes()["axis"], op.values[0].type.rank)
    if not indices.stacked:
        return b(ops.Gather(axis + 1), data.value, indices.value)
    if data.stacked:
        return _gather_each(b, op, data.value, indices.value, axis, T)
    picked = b(ops.Gather(axis), data.value, indices.value)
    rank = picked.type.rank
    return b(ops.Transpose((axis, *(i for i in range(rank) if i != axis))), picked)


def _gather_each(b: Builder, op: Op, data: Value, indices: Value, axis: int, T: Size) -> Value:
    """Each step picks from data of its own: elements by index, along the last axis."""
    shape = data.type.shape[1:]
    rest = (*shape[:axis], *shape[axis + 1 :])
    count = math.prod(indices.type.shape[1:])
    rank = len(shape)
    last = (0, *(i + 1 for i in range(rank) if i != axis), axis + 1)
    flat = b(ops.Reshape((T, *(1 for _ in rest), count)), indices)
    where = b(ops.Expand((T, *rest, count)), flat)
    picked = b(ops.GatherElements(rank), b(ops.Transpose(last), data), where)
    back = b(ops.Transpose(tuple(last.index(i) for i in range(rank + 1))), picked)
    return b(ops.Reshape((T, *op.results[0].type.shape)), back)


_RULES: dict[type[OpDef], Rule] = {
    ops.Reshape: _reshape,
    ops.Unsqueeze: _reshape,
    ops.Squeeze: _reshape,
    ops.Transpose: _transpose,
    ops.Expand: _expand,
    ops.Concat: _along_axis,
    ops.Slice: _along_axis,
    ops.Pad: _along_axis,
    ops.Softmax: _along_axis,
    ops.CumSum: _along_axis,
    ops.CumProd: _along_axis,
    ops.CumMax: _along_axis,
    ops.CumMin: _along_axis,
    ops.LogCumSumExp: _along_axis,
    ops.GatherElements: _along_axis,
    ops.ScatterElements: _along_axis,
    ops.Reduce: _reduce,
    ops.RmsNorm: _last_axis,
    ops.LayerNorm: _last_axis,
    ops.Matmul: _matmul,
    ops.Linear: _linear,
    ops.Gather: _gather,
}
