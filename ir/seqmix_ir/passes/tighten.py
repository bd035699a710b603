"""Tightening: what the bounds of a graph's header decide is decided."""

from __future__ import annotations

import dataclasses

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.ops import (
    Constant,
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Maximum,
    Minimum,
    NotEqual,
    SizeOf,
    constant,
)
from seqmix_ir.passes.bounds import Bounds
from seqmix_ir.passes.resize import resize_block
from seqmix_ir.passes.rewrite import Rule, rewrite_block

__all__ = ["tighten"]


def tighten(module: Module) -> Module:
    """Sizes without what never wins, and comparisons of sizes decided where one outcome is left.

    ``min(P + S, 4096)`` is ``P + S`` where the bounds of both are small.
    """
    graphs = [_tighten_graph(graph) for graph in module.graphs]
    if all(new is old for new, old in zip(graphs, module.graphs, strict=True)):
        return module
    return dataclasses.replace(module, graphs=tuple(graphs))


def _tighten_graph(graph: Graph) -> Graph:
    bounds = Bounds(graph.dims)
    block = rewrite_block(_shortened(graph.block, bounds), [_comparison_rule(bounds)])
    return graph if block is graph.block else graph.with_block(block)


def _shortened(block: Block, bounds: Bounds) -> Block:
    """The block with shorter sizes, or as it is where they would not fit together.

    An op may infer a size that has no shorter form before its operands have theirs, such as the
    length of a slice by steps; another op may then ask for the shortest.
    """
    try:
        return resize_block(block, bounds.shorten)
    except IRError:
        return block


def _comparison_rule(bounds: Bounds) -> Rule:
    def decide_comparison(b: Builder, op: Op) -> tuple[Value, ...] | None:
        if len(op.operands) != 2 or op.results[0].type.shape != ():
            return None
        x, y = (_size(b, v) for v in op.operands)
        if x is None or y is None:
            return None
        low, high = bounds.range(x - y)
        if isinstance(op.defn, Minimum | Maximum):
            return _winner(op, low, high)
        known = _outcome(op, low, high)
        return None if known is None else (constant(b, known, "bool"),)

    return decide_comparison


def _size(b: Builder, value: Value | None) -> Size | None:
    """The size that a scalar holds, if it is known as one."""
    if (op := b.producer(value, SizeOf)) is not None:
        size: Size = op.defn.attributes()["value"]
        return size
    if (op := b.producer(value, Constant)) is None:
        return None
    number = op.defn.attributes()["value"]
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _winner(op: Op, low: int | float, high: int | float) -> tuple[Value, ...] | None:
    """The operand that ``minimum`` or ``maximum`` surely takes; ``low``, ``high``: of x - y."""
    x, y = op.values
    smaller = x if high <= 0 else y if low >= 0 else None
    if smaller is None:
        return None
    takes_smaller = isinstance(op.defn, Minimum)
    return (smaller if takes_smaller else y if smaller is x else x,)


def _outcome(op: Op, low: int | float, high: int | float) -> bool | None:
    """What a comparison surely gives, by the range of x - y."""
    match op.defn:
        case Less():
            return _sure(high < 0, low >= 0)
        case LessEqual():
            return _sure(high <= 0, low > 0)
        case Greater():
            return _sure(low > 0, high <= 0)
        case GreaterEqual():
            return _sure(low >= 0, high < 0)
        case Equal():
            return _sure(low == high == 0, low > 0 or high < 0)
        case NotEqual():
            return _sure(low > 0 or high < 0, low == high == 0)
        case _:
            return None


def _sure(yes: bool, no: bool) -> bool | None:
    return yes if yes or no else None
