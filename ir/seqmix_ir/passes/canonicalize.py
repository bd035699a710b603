"""Canonical form: what can be said in fewer ops is; rules run until nothing changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from seqmix_ir.errors import IRError
from seqmix_ir.graph import Module
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.fold import fold
from seqmix_ir.passes.rewrite import Rule, rewrite_module
from seqmix_ir.passes.simplify import NAMED_RULES

__all__ = ["canonicalize"]

_ROUNDS = 50


def canonicalize(module: Module, rules: Sequence[Rule] = ()) -> Module:
    """Fold constants and apply the named rules and ``rules`` to a fixed point.

    IRError when the rules do not come to an end, which means that two of them undo each other.
    """
    every = (*NAMED_RULES.values(), *rules)
    for _ in range(_ROUNDS):
        before = _ops(module)
        module = dce(fold(rewrite_module(module, *every)))
        if _ops(module) == before:
            return module
    raise IRError(
        f"module '{module.name}': rules still change it after {_ROUNDS} rounds; "
        "two of them undo each other"
    )


def _ops(module: Module) -> list[tuple[object, ...]]:
    """What the module computes, in a form that shows whether a round changed it."""
    return [
        (type(op.defn), dataclasses.astuple(op.defn), op.operands, op.results)  # type: ignore[call-overload]
        for graph in module.graphs
        for op in graph.block.walk()
    ]
