"""The pass that moves out of the bodies of scans what need not be in the loop."""

from __future__ import annotations

from seqmix_ir.adjoint.split import Split
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Module, Op, Value
from seqmix_ir.ops import Scan, Transpose
from seqmix_ir.passes.rewrite import rewrite_module

__all__ = ["hoist"]


def hoist(module: Module) -> Module:
    """Compute before and behind each loop, for all steps at once, what no carry runs through.

    An op that no carry flows into stands before the loop, one that flows into no carry behind it:
    a product with a constant matrix, say, is then one product with the rows of all steps. What
    would need far more memory stacked than the loop reads and writes stays inside. A scan from
    which something moved runs over axis 0; the others are left as they are.
    """
    return rewrite_module(module, _hoisted)


def _hoisted(b: Builder, op: Op) -> tuple[Value, ...] | None:
    scan, body = op.defn, op.body
    if not isinstance(scan, Scan) or body is None:
        return None
    first, second = scan.carries, scan.carries + scan.sequences
    ahead = Builder(op.loc.inside("hoist"))
    operands = [
        moved(ahead, v, scan.axis, 0) if first <= i < second else v for i, v in enumerate(op.values)
    ]
    split = Split(ahead, scan, body, operands)
    if not split.moved:
        return None
    looped = split.emit(body.results[first:])
    outputs = [moved(ahead, split.of(r), 0, scan.axis) for r in body.results[first:]]
    for made in ahead.ops:
        b.append(made)
    return (*looped.results[:first], *outputs)


def moved(b: Builder, x: Value, axis: int, to: int) -> Value:
    """``x`` with one axis at another place."""
    if axis == to:
        return x
    rest = [i for i in range(x.type.rank) if i != axis]
    rest.insert(to, axis)
    return b(Transpose(tuple(rest)), x)
