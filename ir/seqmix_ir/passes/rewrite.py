"""Rebuild graphs: an environment ``old value -> new value`` is the only mechanism."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Module, Op, Value

__all__ = ["Bodies", "Rule", "change_body", "map_blocks", "rewrite_block", "rewrite_module"]

Rule: TypeAlias = Callable[[Builder, Op], tuple[Value, ...] | None]
Bodies: TypeAlias = dict[Block, Block]
"""What became of bodies: one that several ops share stays one, as it defines its values."""


def rewrite_module(module: Module, *rules: Rule) -> Module:
    """Offer every op, with its new operands, to the rules in turn; the first answer replaces it."""
    return map_blocks(module, lambda block: rewrite_block(block, rules))


def map_blocks(module: Module, change: Callable[[Block], Block]) -> Module:
    """The module with the block of every graph changed; the same object if none was."""
    blocks = [change(graph.block) for graph in module.graphs]
    if all(new is old.block for new, old in zip(blocks, module.graphs, strict=True)):
        return module
    graphs = tuple(g.with_block(new) for g, new in zip(module.graphs, blocks, strict=True))
    return dataclasses.replace(module, graphs=graphs)


def change_body(op: Op, bodies: Bodies, change: Callable[[Block], Block]) -> Block | None:
    """The body of ``op`` after ``change``, which each body meets once; None where there is none."""
    if op.body is None:
        return None
    if (known := bodies.get(op.body)) is None:
        known = bodies[op.body] = change(op.body)
    return known


def rewrite_block(block: Block, rules: Sequence[Rule], bodies: Bodies | None = None) -> Block:
    """Rebuild one block, bodies first. A rule that answers None leaves the op as it is.

    The result is the same object when no rule had an answer. What a rule emitted before it
    answered None is dead code.
    """
    bodies = {} if bodies is None else bodies
    b = Builder()
    env: dict[Value, Value] = {p: p for p in block.params}
    changed = False
    for op in block.ops:
        moved = _moved(op, env, rules, bodies)
        b.loc = op.loc
        results = next((r for rule in rules if (r := rule(b, moved)) is not None), None)
        changed = changed or results is not None or moved is not op
        if results is None:
            b.append(moved)
            continue
        for old, new in zip(op.results, _checked(moved, results), strict=True):
            env[old] = new
    return b.block(block.params, tuple(env.get(r, r) for r in block.results)) if changed else block


def _moved(op: Op, env: dict[Value, Value], rules: Sequence[Rule], bodies: Bodies) -> Op:
    """The op on new operands, its body rewritten; the same object when nothing changed."""
    operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
    body = change_body(op, bodies, lambda inner: rewrite_block(inner, rules, bodies))
    if operands == op.operands and body is op.body:
        return op
    return Op(op.defn, operands, op.results, body, op.loc)


def _checked(op: Op, results: tuple[Value, ...]) -> tuple[Value, ...]:
    """IRError when a rule changes how many results there are, or their types."""
    if len(results) != len(op.results):
        raise IRError(
            f"{op.loc}: rewriting '{op.name}' gave {len(results)} results, "
            f"expected {len(op.results)}"
        )
    for old, new in zip(op.results, results, strict=True):
        if old.type != new.type:
            raise IRError(f"{op.loc}: rewriting '{op.name}' changed {old.type} into {new.type}")
    return results
