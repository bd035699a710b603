"""Canonical form: what can be said in fewer ops is; rules run until nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

from seqmix_ir.errors import IRError
from seqmix_ir.graph import Module
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.fold import fold
from seqmix_ir.passes.rewrite import Rule, rewrite_module
from seqmix_ir.passes.simplify import NAMED_RULES
from seqmix_ir.passes.tighten import tighten

__all__ = ["canonicalize"]

_ROUNDS = 50


def canonicalize(module: Module, rules: Sequence[Rule] = ()) -> Module:
    """Use the bounds of sizes, then fold constants and apply the rules to a fixed point.

    IRError when the rules do not come to an end, which means that two of them undo each other.
    """
    module = tighten(module)
    every = (*NAMED_RULES.values(), *rules)
    for _ in range(_ROUNDS):
        before = module
        module = dce(fold(rewrite_module(module, *every)))
        if module is before:
            return module
    raise IRError(
        f"module '{module.name}': rules still change it after {_ROUNDS} rounds; a rule answers "
        "with what it was given, or two of them undo each other"
    )
