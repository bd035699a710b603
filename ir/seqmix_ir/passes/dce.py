"""Dead code: ops whose results nothing reads."""

from __future__ import annotations

from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import Bodies, change_body, map_blocks

__all__ = ["dce", "dce_block"]


def dce(module: Module) -> Module:
    """Drop ops that no result depends on, in bodies too."""
    bodies: Bodies = {}
    return map_blocks(module, lambda block: dce_block(block, bodies))


def dce_block(block: Block, bodies: Bodies | None = None) -> Block:
    """The block without dead ops, the same object if there are none.

    An op with several results stays while one of them is read. ``bodies`` are those that were
    changed already, as several ops may share one.
    """
    changed: Bodies = {} if bodies is None else bodies
    live: set[Value] = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not live.isdisjoint(op.results):
            body = change_body(op, changed, lambda inner: dce_block(inner, changed))
            same = body is op.body
            kept.append(op if same else Op(op.defn, op.operands, op.results, body, op.loc))
            live.update(v for v in op.operands if v is not None)
    kept.reverse()
    return block if tuple(kept) == block.ops else Block(block.params, tuple(kept), block.results)
