"""Rules by which all that merely adds, removes or moves axes of size 1 becomes a reshape.

Reshapes join with each other and copy nothing, so that a backend which pays for every op has fewer
of them. :mod:`seqmix_ir.passes.layout` then takes them out from between elementwise ops.
"""

from __future__ import annotations

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops import Reshape, Slice, Squeeze, Transpose, Unsqueeze
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.passes.rewrite import Rule
from seqmix_ir.passes.simplify import normal_axes_in_order

__all__ = ["RESHAPE_RULES"]


def move_nothing(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """A transpose that moves axes of size 1 alone is a reshape, which copies nothing."""
    if not isinstance(op.defn, Transpose):
        return None
    (x,) = op.values
    perm = normal_axes_in_order(op.defn.perm, x.type.rank)
    moved = [axis for axis in perm if x.type.shape[axis] != 1]
    return (b(Reshape(op.results[0].type.shape), x),) if moved == sorted(moved) else None


def reshape_only(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Squeeze and unsqueeze are reshapes too, so that they join with those around them."""
    if not isinstance(op.defn, Squeeze | Unsqueeze):
        return None
    return (b(Reshape(op.results[0].type.shape), *op.values),)


def cut_after_reshape(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Where only axes of size 1 come or go, pieces are cut from what was reshaped once for all."""
    if not isinstance(op.defn, Reshape) or (cut := b.producer(op.operands[0], Slice)) is None:
        return None
    (whole,), (piece,), after = cut.values, cut.results, op.results[0].type.shape
    defn, before = cut.defn, piece.type.shape
    if not isinstance(defn, Slice) or [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    axis = normal_axis(defn.axis, len(before))
    if before[axis] == 1:
        return None
    place = [i for i, n in enumerate(after) if n != 1][sum(n != 1 for n in before[:axis])]
    shape = (*after[:place], whole.type.shape[axis], *after[place + 1 :])
    return (b(Slice(place, defn.start, defn.stop, defn.step), b(Reshape(shape), whole)),)


RESHAPE_RULES: tuple[Rule, ...] = (move_nothing, reshape_only, cut_after_reshape)
