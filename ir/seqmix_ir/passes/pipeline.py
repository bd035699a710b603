"""The way from a captured module to one that a backend can compile, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from seqmix_ir.graph import Module
from seqmix_ir.passes.canonicalize import canonicalize
from seqmix_ir.passes.cse import cse
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.legalize import Legality, Legalization, legalize
from seqmix_ir.passes.rewrite import Rule
from seqmix_ir.verifier import verify

__all__ = ["STEPS", "Watcher", "lower"]

Watcher = Callable[[str, Module], None]


STEPS = ("captured", "canonicalized", "decomposed", "cleaned", "legalized")
"""The names that a watcher hears, in order."""


def lower(
    module: Module,
    legality: Legality,
    rules: Sequence[Rule] = (),
    *,
    watch: Watcher | None = None,
    verify_each: bool = False,
) -> tuple[Module, Legalization]:
    """Verify, canonicalize with the extra ``rules``, legalize, clean up, verify.

    ``watch(name, module)`` is called after every step of :data:`STEPS`; ``verify_each`` verifies
    there too. The record counts as native what is in the module that is returned.
    """

    def done(name: str, result: Module) -> Module:
        if verify_each or name in ("captured", "legalized"):
            verify(result)
        if watch is not None:
            watch(name, result)
        return result

    module = done("captured", module)
    module = done("canonicalized", canonicalize(module, rules))
    legal, record = legalize(module, legality)
    legal = done("decomposed", legal)
    legal = done("cleaned", cse(_tidied(legal, legality)))
    legal = done("legalized", dce(legal))
    record.native = Counter(op.name for graph in legal.graphs for op in graph.block.walk())
    return legal, record


def _tidied(module: Module, legality: Legality) -> Module:
    """The canonical form of a legal module if that is legal, else the module as it is.

    A rule may join what a decomposition split because the backend refuses the whole.
    """
    tidy = canonicalize(module)
    ops = (op for graph in tidy.graphs for op in graph.block.walk())
    return tidy if all(legality.supports(op) is None for op in ops) else module
