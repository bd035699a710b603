"""Dead code: ops whose results nothing reads."""

from __future__ import annotations

from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import map_blocks

__all__ = ["dce", "dce_block"]


def dce(module: Module) -> Module:
    """Drop ops that no result depends on, in bodies too."""
    return map_blocks(module, dce_block)


def dce_block(block: Block) -> Block:
    """The block without dead ops, the same object if there are none.

    An op with several results stays while one of them is read.
    """
    live: set[Value] = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not live.isdisjoint(op.results):
            body = None if op.body is None else dce_block(op.body)
            same = body is op.body
            kept.append(op if same else Op(op.defn, op.operands, op.results, body, op.loc))
            live.update(v for v in op.operands if v is not None)
    kept.reverse()
    return block if tuple(kept) == block.ops else Block(block.params, tuple(kept), block.results)
