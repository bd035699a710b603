"""Printing: modules as text that the parser reads back.

The text without locations is canonical: modules that differ in locations only give equal text,
and its hash is the module's fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.text.excerpt import clipped, few, windows
from seqmix_ir.text.lex import WORD, quoted
from seqmix_ir.text.literal import show_literal, show_loc

__all__ = ["FORMAT", "fingerprint", "show", "show_graph"]

FORMAT = 1

T = TypeVar("T")
Notes = Mapping[Op, Sequence[str]]


def show(module: Module, *, locs: bool = False) -> str:
    """The text of a module; ``locs`` adds the chain of locations to every op."""
    ops = [op for graph in module.graphs for op in graph.block.walk()]
    uses = sorted({f"{op.name}@{op.defn.version}" for op in ops})
    lines = [f"seqmix {FORMAT}"]
    if uses:
        lines.append(f"uses {', '.join(uses)}")
    lines.append(f"module @{quoted(module.name)} {{")
    for graph in module.graphs:
        text = show_graph(graph, locs=locs)
        lines.extend("  " + line for line in text.splitlines())
    return "\n".join([*lines, "}"]) + "\n"


def fingerprint(module: Module) -> str:
    """Hex sha256 of the canonical text."""
    return hashlib.sha256(show(module).encode()).hexdigest()


def show_graph(graph: Graph, *, locs: bool = False, notes: Notes | None = None) -> str:
    """The text of one graph; ``notes`` are printed under their ops, for people.

    With ``notes``, what cannot be spelled is shown in angle brackets (without, it is an IRError),
    and of a long graph only the surroundings of the notes are shown.
    """
    writer = _Writer(locs, notes)
    for param in graph.block.params:
        writer.define(param, named=True)
    params = writer.listed(graph.block.params, writer.typed)
    dims = f" dims({writer.listed(graph.dims, _dim)})" if graph.dims else ""
    outputs = writer.listed(graph.outputs, quoted)
    head = f"graph @{quoted(graph.name)}({params}){dims} -> ({outputs}) {{"
    return "\n".join([head, *writer.block(graph.block, "  "), "}"])


class _Writer:
    """Names the values of one isolated block and writes its lines."""

    def __init__(self, locs: bool, notes: Notes | None) -> None:
        self._locs = locs
        self._lenient = notes is not None
        self._notes: Notes = notes or {}
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._next = 0

    def define(self, value: Value, *, named: bool = False) -> str:
        """A fresh name: the hint where it is free and a word, else a number.

        Inputs are ``named``: theirs are kept whatever they are, in quotes where need be.
        """
        name = quoted(value.hint) if named and value.hint else value.hint
        if not name or name in self._taken or not (named or WORD.fullmatch(name)):
            name = str(self._next)
            self._next += 1
        self._taken.add(name)
        self._names[value] = name
        return f"%{name}"

    def block(self, block: Block, indent: str) -> list[str]:
        """The lines between the braces."""
        lines: list[str] = []
        runs = windows(block, self._notes) if self._lenient else [(block.ops, True)]
        for ops, seen in runs:
            for op in ops:
                lines.extend(self._noted(op, indent) if seen else self._unseen(op))
            lines.extend([] if seen else [f"{indent}... {len(ops)} ops ..."])
        lines.append(f"{indent}return {self.listed(block.results, self._use)}".rstrip())
        return lines

    def listed(self, items: Sequence[T], show: Callable[[T], str]) -> str:
        """Items between commas; for people not too many of them."""
        return ", ".join(few(items, show) if self._lenient else map(show, items))

    def typed(self, value: Value) -> str:
        """A defined value with its type."""
        return f"{self._use(value)}: {value.type}"

    def _noted(self, op: Op, indent: str) -> list[str]:
        lines = self._op(op, indent)
        return [*lines, *(f"{indent}^ {note}" for note in self._notes.get(op, ()))]

    def _unseen(self, op: Op) -> list[str]:
        """No lines, but the names that the op's results have."""
        for result in op.results:
            self.define(result)
        return []

    def _op(self, op: Op, indent: str) -> list[str]:
        operands = self.listed(op.operands, self._operand)
        attributes = ", ".join(
            f"{key} = {self._literal(value)}" for key, value in op.defn.attributes().items()
        )
        right = f"{op.name}({operands})" + (f" {{{attributes}}}" if attributes else "")
        body = [] if op.body is None else self._body(op.body, indent)
        left = self.listed([self.define(v) for v in op.results], str)
        types = self.listed(op.results, lambda v: str(v.type))
        tail = f" : {types}" + (f" {show_loc(op.loc)}" if self._locs else "")
        if op.body is None:
            return [f"{indent}{left} = {right}{tail}"]
        return [f"{indent}{left} = {right} {body[0]}", *body[1:-1], f"{indent}}}{tail}"]

    def _body(self, body: Block, indent: str) -> list[str]:
        inner = _Writer(self._locs, self._notes if self._lenient else None)
        for param in body.params:
            inner.define(param)
        params = inner.listed(body.params, inner.typed)
        return [f"body({params}) {{", *inner.block(body, indent + "  "), "}"]

    def _literal(self, value: object) -> str:
        try:
            text = show_literal(value)
        except IRError:
            if not self._lenient:
                raise
            text = f"<{value!r}>"
        return clipped(text) if self._lenient else text

    def _operand(self, value: Value | None) -> str:
        return "none" if value is None else self._use(value)

    def _use(self, value: Value) -> str:
        return f"%{self._names.get(value, '?')}"


def _dim(info: DimInfo) -> str:
    bound = f">= {info.min}" if info.max is None else f"in {info.min}..{info.max}"
    step = f" multiple of {info.multiple_of}" if info.multiple_of != 1 else ""
    return f"{info.name} {bound}{step}"
