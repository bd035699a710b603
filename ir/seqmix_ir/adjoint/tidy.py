"""Blocks without dead ops, without what is computed twice, in canonical form."""

from __future__ import annotations

from seqmix_ir.graph import Block, Graph, Module
from seqmix_ir.passes.canonicalize import canonicalize
from seqmix_ir.passes.cse import cse
from seqmix_ir.passes.dce import dce

__all__ = ["tidied"]


def tidied(block: Block) -> Block:
    """The block after canonical form and common subexpressions; it is differentiated already.

    (``clip_gradient`` is an identity from here on, and goes.)
    """
    outputs = tuple(f"y{i}" for i in range(len(block.results)))
    module = Module("block", (Graph("block", block, outputs),))
    return dce(cse(canonicalize(module))).graph("block").block
