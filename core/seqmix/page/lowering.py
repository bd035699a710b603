"""Lowering that goes on where a backend refuses an op for good, so that there is one to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqmix_ir.graph import Module, Op
from seqmix_ir.passes import Legality, Legalization, canonicalize, explain, lower
from seqmix_ir.passes.legalize import Impossible
from seqmix_ir.passes.rewrite import Rule

__all__ = ["lower_as_far"]

_ROUNDS = 8


def lower_as_far(
    module: Module, legality: Legality, rules: Sequence[Rule] = ()
) -> tuple[Module, Legalization]:
    """The lowered module and its record, in which impossible ops stand as they are.

    Without impossible ops it is what ``lower`` gives.
    """
    canonical = canonicalize(module, rules)
    record = explain(canonical, legality)
    if not record.impossible:
        return lower(module, legality, rules)
    lenient = _Lenient(legality, {(lost.op, lost.loc) for lost in record.impossible})
    for _ in range(_ROUNDS):
        more = explain(canonical, lenient).impossible
        if not more:
            break
        lenient.accepted.update((lost.op, lost.loc) for lost in more)
    lowered, kept = lower(module, lenient, rules)
    return lowered, Legalization(kept.native, kept.decomposed, _once(record.impossible))


def _once(impossible: Sequence[Impossible]) -> list[Impossible]:
    return list(dict.fromkeys(impossible))


@dataclass
class _Lenient:
    """A backend that also takes the ops which it cannot have any other way."""

    legality: Legality
    accepted: set[tuple[str, str]]

    @property
    def name(self) -> str:
        return self.legality.name

    def supports(self, op: Op) -> str | None:
        return None if (op.name, str(op.loc)) in self.accepted else self.legality.supports(op)

    def prefer(self, op: Op) -> tuple[str, ...]:
        return self.legality.prefer(op)
