"""Dead code: ops whose results nothing reads."""

from __future__ import annotations

from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import Bodies, change_body, map_blocks

__all__ = ["dce"]


def dce(module: Module) -> Module:
    """Drop ops that no result depends on, in bodies too."""
    bodies: Bodies = {}
    return map_blocks(module, lambda block: _dce_block(block, bodies))


def _dce_block(block: Block, bodies: Bodies) -> Block:
    """The block without dead ops, the same object if there are none.

    An op with several results stays while one of them is read.
    """
    live: set[Value] = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not live.isdisjoint(op.results):
            body = change_body(op, bodies, lambda inner: _dce_block(inner, bodies))
            same = body is op.body
            kept.append(op if same else Op(op.defn, op.operands, op.results, body, op.loc))
            live.update(v for v in op.operands if v is not None)
    kept.reverse()
    return block if tuple(kept) == block.ops else Block(block.params, tuple(kept), block.results)
