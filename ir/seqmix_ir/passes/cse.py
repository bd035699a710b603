"""Common subexpressions: equal ops on equal operands are computed once."""

from __future__ import annotations

from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import Bodies, change_body, map_blocks

__all__ = ["cse"]


def cse(module: Module) -> Module:
    """Merge ops with equal definitions and the same operands, each block for itself.

    A body is isolated, so nothing found outside is reused inside. Ops with a body are kept apart.
    """
    bodies: Bodies = {}
    return map_blocks(module, lambda block: _cse_block(block, bodies))


def _cse_block(block: Block, bodies: Bodies) -> Block:
    env: dict[Value, Value] = {}
    seen: dict[tuple[object, ...], Op] = {}
    kept: list[Op] = []
    for op in block.ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        body = change_body(op, bodies, lambda inner: _cse_block(inner, bodies))
        same = operands == op.operands and body is op.body
        moved = op if same else Op(op.defn, operands, op.results, body, op.loc)
        # By spelling: 0.0 equals -0.0, and True equals 1, but they do not compute the same.
        key = (type(op.defn), repr(op.defn), operands)
        known = seen.setdefault(key, moved) if body is None else moved
        if known is moved:
            kept.append(moved)
        else:
            env.update(zip(op.results, known.results, strict=True))
    if tuple(kept) == block.ops:
        return block
    return Block(block.params, tuple(kept), tuple(env.get(r, r) for r in block.results))
