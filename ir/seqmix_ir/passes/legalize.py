"""Legalization: decompose exactly what a backend refuses, until it can run everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.rewrite import Bodies, change_body, map_blocks
from seqmix_ir.types import TensorType

__all__ = ["Impossible", "Legality", "Legalization", "explain", "legalize"]

_Key: TypeAlias = tuple[type[OpDef], str, tuple[TensorType | None, ...]]

_DEEPEST = 16
"""More nested decompositions than this mean that they do not come to an end."""


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
    """An op that the backend refuses and that cannot be decomposed; ``reason`` says both."""

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
            f"{first.loc}: backend '{legality.name}' cannot run '{first.op}': {first.reason}"
            + (f" ({more} more such ops; explain() lists them)" if more else "")
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
        self._endless: set[_Key] = set()
        self._bodies: Bodies = {}

    def block(self, block: Block, above: tuple[_Key, ...] = ()) -> Block:
        """The block with every refused op replaced; ``above`` are the ops it is made of."""
        b = Builder()
        env: dict[Value, Value] = {}
        for op in block.ops:
            operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
            same = operands == op.operands
            moved = op if same else Op(op.defn, operands, op.results, op.body, op.loc)
            env.update(zip(op.results, self._op(b, moved, above), strict=True))
        return b.block(block.params, tuple(env.get(r, r) for r in block.results))

    def _op(self, b: Builder, op: Op, above: tuple[_Key, ...]) -> tuple[Value, ...]:
        """Append the op, or what it decomposes into; its results afterwards."""
        reason = self._legality.supports(op)
        if reason is None:
            self._record.native[op.name] += 1
            body = self._body(op, above)
            b.append(Op(op.defn, op.operands, op.results, body, op.loc))
            return op.results
        style = self._style(op, reason, above)
        if style is None:
            b.append(op)
            return op.results
        return self._decompose(b, op, style, above)

    def _body(self, op: Op, above: tuple[_Key, ...]) -> Block | None:
        """The body of a native op; what is native in it counts for every op that shares it."""
        known = None if op.body is None else self._bodies.get(op.body)
        for inner in () if known is None else known.walk():
            self._record.native[inner.name] += self._legality.supports(inner) is None
        return change_body(op, self._bodies, lambda body: self.block(body, above))

    def _style(self, op: Op, reason: str, above: tuple[_Key, ...]) -> str | None:
        """The decomposition to take, recorded; None when there is none."""
        styles = list(op.defn.decompositions())
        why = ""
        if not styles:
            why = "it has no decomposition"
        elif _key(op) in {*above, *self._endless} or len(above) >= _DEEPEST:
            why = "its decomposition does not come to an end"
            # Nor does any that led here; knowing it keeps branching ones from doubling the work.
            self._endless.update(above)
        if why:
            impossible = Impossible(op.name, str(op.loc), f"{reason}, and {why}")
            self._record.impossible.append(impossible)
            return None
        wanted = [s for s in self._legality.prefer(op) if s in styles]
        style = (wanted or styles)[0]
        self._record.decomposed.setdefault(op.name, f"{style}: {reason}")
        return style

    def _decompose(
        self, b: Builder, op: Op, style: str, above: tuple[_Key, ...]
    ) -> tuple[Value, ...]:
        inner = Builder(op.loc.inside(f"{op.name}.{style}"))
        results = op.defn.decompositions()[style](inner, op)
        wanted, got = [v.type for v in op.results], [v.type for v in results]
        if wanted != got:
            raise IRError(
                f"{op.loc}: decomposition '{style}' of '{op.name}' gives "
                f"({', '.join(map(str, got))}), expected ({', '.join(map(str, wanted))})"
            )
        params = tuple(dict.fromkeys(v for v in op.operands if v is not None))
        part = self.block(inner.block(params, results), (*above, _key(op)))
        for made in part.ops:
            b.append(made)
        return part.results


def _key(op: Op) -> _Key:
    """What makes an op decompose the way it does."""
    return (type(op.defn), repr(op.defn), op.types)
