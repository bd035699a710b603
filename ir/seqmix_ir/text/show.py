"""Printing: modules as text that the parser reads back.

The text without locations is canonical: equal modules give equal text, and its hash is the
module's fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

from seqmix_ir.dims import Dim, show_size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.types import Loc, TensorType

__all__ = ["FORMAT", "fingerprint", "show", "show_graph"]

FORMAT = 1

Notes = Mapping[Op, Sequence[str]]


def show(module: Module, *, locs: bool = False) -> str:
    """The text of a module; ``locs`` adds the chain of locations to every op."""
    ops = [op for graph in module.graphs for op in graph.block.walk()]
    uses = sorted({f"{op.name}@{op.defn.version}" for op in ops})
    lines = [f"seqmix {FORMAT}"]
    if uses:
        lines.append(f"uses {', '.join(uses)}")
    lines.append(f"module @{module.name} {{")
    for graph in module.graphs:
        text = show_graph(graph, locs=locs)
        lines.extend("  " + line for line in text.splitlines())
    return "\n".join([*lines, "}"]) + "\n"


def fingerprint(module: Module) -> str:
    """Hex sha256 of the canonical text."""
    return hashlib.sha256(show(module).encode()).hexdigest()


def show_graph(graph: Graph, *, locs: bool = False, notes: Notes | None = None) -> str:
    """The text of one graph; ``notes`` are printed under their ops, for people."""
    writer = _Writer(locs, notes or {})
    params = ", ".join(f"{writer.define(p)}: {p.type}" for p in graph.block.params)
    dims = f" dims({', '.join(map(_dim, graph.dims))})" if graph.dims else ""
    head = f"graph @{graph.name}({params}){dims} -> ({', '.join(graph.outputs)}) {{"
    return "\n".join([head, *writer.block(graph.block, "  "), "}"])


def show_literal(value: object) -> str:
    """An attribute value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Dim):
        return show_size(value)
    if isinstance(value, int | TensorType):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(show_literal, value)) + "]"
    raise IRError(
        f"an attribute holds {value!r} ({type(value).__name__}); attributes are bools, numbers, "
        "strings, sizes, tensor types and tuples of them"
    )


def show_loc(loc: Loc) -> str:
    """A chain of locations, innermost first."""
    steps: list[str] = []
    current: Loc | None = loc
    while current is not None:
        steps.append(json.dumps(current.text))
        current = current.parent
    return f"loc({' from '.join(steps)})"


class _Writer:
    """Names the values of one isolated block and writes its lines."""

    def __init__(self, locs: bool, notes: Notes) -> None:
        self._locs = locs
        self._notes = notes
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._next = 0

    def define(self, value: Value) -> str:
        """A fresh name: the hint where it is free, else a number."""
        name = value.hint
        if not name or name in self._taken or name[0].isdigit():
            name = str(self._next)
            self._next += 1
        self._taken.add(name)
        self._names[value] = name
        return f"%{name}"

    def block(self, block: Block, indent: str) -> list[str]:
        """The lines between the braces."""
        lines: list[str] = []
        for op in block.ops:
            lines.extend(self._op(op, indent))
            lines.extend(f"{indent}^ {note}" for note in self._notes.get(op, ()))
        lines.append(f"{indent}return {', '.join(map(self._use, block.results))}".rstrip())
        return lines

    def _op(self, op: Op, indent: str) -> list[str]:
        operands = ", ".join("none" if v is None else self._use(v) for v in op.operands)
        attributes = ", ".join(
            f"{key} = {show_literal(value)}" for key, value in op.defn.attributes().items()
        )
        right = f"{op.name}({operands})" + (f" {{{attributes}}}" if attributes else "")
        body = [] if op.body is None else self._body(op.body, indent)
        left = ", ".join(map(self.define, op.results))
        types = ", ".join(str(v.type) for v in op.results)
        tail = f" : {types}" + (f" {show_loc(op.loc)}" if self._locs else "")
        if op.body is None:
            return [f"{indent}{left} = {right}{tail}"]
        return [f"{indent}{left} = {right} {body[0]}", *body[1:-1], f"{indent}}}{tail}"]

    def _body(self, body: Block, indent: str) -> list[str]:
        inner = _Writer(self._locs, self._notes)
        params = ", ".join(f"{inner.define(p)}: {p.type}" for p in body.params)
        return [f"body({params}) {{", *inner.block(body, indent + "  "), "}"]

    def _use(self, value: Value) -> str:
        return f"%{self._names.get(value, '?')}"


def _dim(info: DimInfo) -> str:
    text = f"{info.name} >= {info.min}"
    if info.max is not None:
        text += f" <= {info.max}"
    return text + (f" % {info.multiple_of}" if info.multiple_of != 1 else "")
