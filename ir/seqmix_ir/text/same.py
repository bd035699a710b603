"""Structural equality: what the text form must preserve."""

from __future__ import annotations

from seqmix_ir.graph import Block, Graph, Module, Op, Value

__all__ = ["same"]


def same(left: Module, right: Module) -> bool:
    """Whether two modules say the same, whatever their locations and the hints of inner values.

    Names of modules, graphs, inputs and outputs count, so do the dims headers. Attributes are
    compared by their spelling: ``nan`` equals itself, ``-0.0`` is not ``0.0``, 1 is not ``1.0``.
    """
    return (
        left.name == right.name
        and len(left.graphs) == len(right.graphs)
        and all(_same_graph(a, b) for a, b in zip(left.graphs, right.graphs, strict=True))
    )


def _same_graph(left: Graph, right: Graph) -> bool:
    return (
        (left.name, left.outputs, left.dims) == (right.name, right.outputs, right.dims)
        and [p.hint for p in left.block.params] == [p.hint for p in right.block.params]
        and _same_block(left.block, right.block)
    )


def _same_block(left: Block, right: Block) -> bool:
    if len(left.ops) != len(right.ops):
        return False
    env: dict[Value, Value] = {}
    return (
        _define(left.params, right.params, env)
        and all(_same_op(a, b, env) for a, b in zip(left.ops, right.ops, strict=True))
        and _matched(left.results, right.results, env)
    )


def _same_op(left: Op, right: Op, env: dict[Value, Value]) -> bool:
    if type(left.defn) is not type(right.defn) or repr(left.defn) != repr(right.defn):
        return False
    if (left.body is None) != (right.body is None):
        return False
    return (
        _matched(left.operands, right.operands, env)
        and (left.body is None or right.body is None or _same_block(left.body, right.body))
        and _define(left.results, right.results, env)
    )


def _define(left: tuple[Value, ...], right: tuple[Value, ...], env: dict[Value, Value]) -> bool:
    """Pair up new values; False when their types differ."""
    if [v.type for v in left] != [v.type for v in right]:
        return False
    env.update(zip(left, right, strict=True))
    return True


def _matched(
    left: tuple[Value | None, ...], right: tuple[Value | None, ...], env: dict[Value, Value]
) -> bool:
    return len(left) == len(right) and all(
        b is None if a is None else b is not None and env.get(a) is b
        for a, b in zip(left, right, strict=True)
    )
