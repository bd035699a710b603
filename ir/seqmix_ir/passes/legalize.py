"""Legalization: decompose exactly what a backend refuses, until it can run everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import map_blocks

__all__ = ["Impossible", "Legality", "Legalization", "explain", "legalize"]

_DEEPEST = 32
"""More nested decompositions than this mean that two ops decompose into each other."""


class Legality(Protocol):
    """What a backend can run."""

    @property
    def name(self) -> str:
        """The backend's name, for messages."""

    def supports(self, op: Op) -> str | None:
        """None when the op runs natively, else the reason why not."""

    def prefer(self, op: Op) -> tuple[str, ...]:
        """Styles of decomposition, best first; others follow in the op's own order."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """An op that the backend refuses and that has no decomposition."""

    op: str
    loc: str
    reason: str


@dataclass
class Legalization:
    """What was native, what was decomposed how and why, and what cannot be run."""

    native: Counter[str] = field(default_factory=Counter)
    decomposed: dict[str, str] = field(default_factory=dict)
    impossible: list[Impossible] = field(default_factory=list)


def legalize(module: Module, legality: Legality) -> tuple[Module, Legalization]:
    """A module of ops that the backend runs; IRError names the op, location, backend and reason."""
    legal, record = _run(module, legality)
    if record.impossible:
        first = record.impossible[0]
        more = len(record.impossible) - 1
        raise IRError(
            f"backend '{legality.name}' cannot run '{first.op}' at {first.loc}: {first.reason}, "
            "and it has no decomposition" + (f" ({more} more like it)" if more else "")
        )
    return legal, record


def explain(module: Module, legality: Legality) -> Legalization:
    """The record that :func:`legalize` would make; impossible ops are listed, not raised."""
    return _run(module, legality)[1]


def _run(module: Module, legality: Legality) -> tuple[Module, Legalization]:
    record = Legalization()
    legalizer = _Legalizer(legality, record)
    return map_blocks(module, legalizer.block), record


class _Legalizer:
    def __init__(self, legality: Legality, record: Legalization) -> None:
        self._legality = legality
        self._record = record

    def block(self, block: Block, depth: int = 0) -> Block:
        """The block with every refused op replaced by its decomposition."""
        b = Builder()
        env: dict[Value, Value] = {}
        for op in block.ops:
            operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
            moved = Op(op.defn, operands, op.results, op.body, op.loc)
            env.update(zip(op.results, self._op(b, moved, depth), strict=True))
        return b.block(block.params, tuple(env.get(r, r) for r in block.results))

    def _op(self, b: Builder, op: Op, depth: int) -> tuple[Value, ...]:
        """Append the op, or what it decomposes into; its results afterwards."""
        reason = self._legality.supports(op)
        if reason is None:
            self._record.native[op.name] += 1
            body = None if op.body is None else self.block(op.body, depth)
            b.append(Op(op.defn, op.operands, op.results, body, op.loc))
            return op.results
        style = self._style(op, reason, depth)
        if style is None:
            b.append(op)
            return op.results
        return self._decompose(b, op, style, depth)

    def _style(self, op: Op, reason: str, depth: int) -> str | None:
        """The decomposition to take, recorded; None when there is none."""
        styles = list(op.defn.decompositions())
        wanted = [s for s in self._legality.prefer(op) if s in styles]
        if not styles or depth > _DEEPEST:
            why = f"{reason} (decompositions nest too deeply)" if styles else reason
            self._record.impossible.append(Impossible(op.name, str(op.loc), why))
            return None
        style = (wanted or styles)[0]
        self._record.decomposed.setdefault(op.name, f"{style}: {reason}")
        return style

    def _decompose(self, b: Builder, op: Op, style: str, depth: int) -> tuple[Value, ...]:
        inner = Builder(op.loc.inside(f"{op.name}.{style}"))
        results = op.defn.decompositions()[style](inner, op)
        for old, new in zip(op.results, results, strict=True):
            if old.type != new.type:
                raise IRError(
                    f"{op.loc}: decomposition '{style}' of '{op.name}' gives {new.type}, "
                    f"expected {old.type}"
                )
        params = tuple(dict.fromkeys(v for v in op.operands if v is not None))
        part = self.block(inner.block(params, results), depth + 1)
        for made in part.ops:
            b.append(made)
        return part.results
