"""The way from a captured module to one that a backend can compile, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seqmix_ir.graph import Module
from seqmix_ir.passes.canonicalize import canonicalize
from seqmix_ir.passes.cse import cse
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.legalize import Legality, Legalization, legalize
from seqmix_ir.passes.rewrite import Rule
from seqmix_ir.verify import verify

__all__ = ["Watcher", "lower"]

Watcher = Callable[[str, Module], None]


def lower(
    module: Module,
    legality: Legality,
    rules: Sequence[Rule] = (),
    *,
    watch: Watcher | None = None,
    verify_each: bool = False,
) -> tuple[Module, Legalization]:
    """Verify, canonicalize with the extra ``rules``, legalize, clean up, verify.

    ``watch(name, module)`` is called after every step; ``verify_each`` verifies there too.
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
    legal = done("cleaned", cse(canonicalize(legal)))
    return done("legalized", dce(legal)), record
