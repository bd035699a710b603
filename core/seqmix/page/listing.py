"""A module as rows of a page: every input, op and output, with the names that the text form has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.text.lex import WORD, quoted
from seqmix_ir.text.literal import show_literal
from seqmix_ir.types import Loc

__all__ = ["Listing", "Row", "Side", "chain_of", "list_module", "walk"]

_LOCATION = re.compile(r"(?P<path>.+) \((?P<source>[^()]*)\)", re.DOTALL)
"""What capture writes: the module path, ``root`` for the model itself, then file and line."""

_LOOSE = "constants."
"""How capture begins the names of tensors that are no parameter and no buffer of a module."""


@dataclass(frozen=True)
class Row:
    """One line of the page.

    ``kind`` is ``op``, ``input`` or ``output``; ``operands`` and ``results`` are numbers of values,
    counted over the whole side, None for an operand that is absent. ``path`` is the module path of
    the user's model, ``chain`` the whole location, innermost first. ``floating`` rows are weights
    and constants that stand for no line of the model.
    """

    index: int
    kind: str
    name: str
    operands: tuple[int | None, ...] = ()
    results: tuple[int, ...] = ()
    attributes: str = ""
    path: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    op: Op | None = None
    body: tuple[Row, ...] = ()
    floating: bool = False


@dataclass(frozen=True)
class Listing:
    """The rows of one graph, in the order of the graph."""

    name: str
    dims: str
    rows: tuple[Row, ...]


@dataclass
class Side:
    """One module: its graphs as rows, and the name and type of every value."""

    graphs: list[Listing] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        """Every row, bodies included, in the order of their indices."""
        for graph in self.graphs:
            yield from walk(graph.rows)

    def ops(self) -> Iterator[Row]:
        """The rows that are ops."""
        return (row for row in self.rows() if row.kind == "op")


def list_module(module: Module) -> Side:
    """The rows of a module."""
    lister = _Lister()
    for graph in module.graphs:
        lister.graph(graph)
    return lister.side


def walk(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows and the rows of their bodies, outer first."""
    for row in rows:
        yield row
        yield from walk(row.body)


def chain_of(loc: Loc) -> list[Loc]:
    """The locations of a chain, innermost first."""
    chain = [loc]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain


class _Lister:
    """Numbers rows and values of one side."""

    def __init__(self) -> None:
        self.side = Side()
        self._count = 0

    def graph(self, graph: Graph) -> None:
        """Add one graph."""
        names = _Names()
        inputs = [names.define(p, named=True) for p in graph.block.params]
        rows = self._block(graph.block, names, inputs, graph.outputs)
        self.side.graphs.append(Listing(graph.name, ", ".join(map(str, _dims(graph))), rows))

    def _block(
        self, block: Block, names: _Names, inputs: Sequence[str], outputs: Sequence[str]
    ) -> tuple[Row, ...]:
        numbers: dict[Value, int] = {}
        rows = []
        for value, name in zip(block.params, inputs, strict=True):
            numbers[value] = self._value(value, name)
            rows.append(Row(self._row(), "input", value.hint, results=(numbers[value],)))
        rows += [self._op(op, names, numbers) for op in block.ops]
        for value, name in zip(block.results, outputs, strict=True):
            rows.append(Row(self._row(), "output", name, operands=(numbers.get(value),)))
        return tuple(rows)

    def _op(self, op: Op, names: _Names, numbers: dict[Value, int]) -> Row:
        index = self._row()
        operands = tuple(None if v is None else numbers.get(v) for v in op.operands)
        body = () if op.body is None else self._body(op.body)
        for value in op.results:
            numbers[value] = self._value(value, names.define(value))
        chain = tuple(loc.text for loc in chain_of(op.loc))
        path, source = _origin(op, chain[-1])
        return Row(
            index, "op", op.name, operands, tuple(numbers[v] for v in op.results), _attributes(op),
            path, chain, op, body, floating=not source and not op.operands,
        )  # fmt: skip

    def _body(self, body: Block) -> tuple[Row, ...]:
        names = _Names()  # A body is isolated: it counts its values anew, as the text form does.
        inputs = [names.define(p) for p in body.params]
        return self._block(body, names, inputs, [str(i) for i in range(len(body.results))])

    def _row(self) -> int:
        self._count += 1
        return self._count - 1

    def _value(self, value: Value, name: str) -> int:
        self.side.names.append(name)
        self.side.types.append(str(value.type))
        return len(self.side.names) - 1


class _Names:
    """The names that the text form gives to the values of one block."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next = 0

    def define(self, value: Value, *, named: bool = False) -> str:
        """The hint where it is free and a word, else a number; inputs keep theirs, in quotes."""
        name = quoted(value.hint) if named and value.hint else value.hint
        if not name or name in self._taken or not (named or WORD.fullmatch(name)):
            name = str(self._next)
            self._next += 1
        self._taken.add(name)
        return f"%{name}"


def _attributes(op: Op) -> str:
    return ", ".join(f"{k} = {_literal(v)}" for k, v in op.defn.attributes().items())


def _literal(value: object) -> str:
    try:
        return show_literal(value)
    except IRError:  # The page is for people: what cannot be spelled is shown as Python shows it.
        return f"<{value!r}>"


def _origin(op: Op, location: str) -> tuple[tuple[str, ...], str]:
    """Module path and source line in the outermost location; a weight belongs to its owner."""
    if op.name == "weight":
        key = str(op.defn.attributes().get("key", ""))
        return () if key.startswith(_LOOSE) else tuple(key.split(".")[:-1]), ""
    match = _LOCATION.fullmatch(location)
    # Without a source line a location is the name of a tensor or of a node, which is no module.
    if match is None or match["path"] == "root":
        return (), "" if match is None else match["source"]
    return tuple(match["path"].split(".")), match["source"]


def _dims(graph: Graph) -> Iterator[str]:
    for info in graph.dims:
        bound = f"≥ {info.min}" if info.max is None else f"in {info.min}..{info.max}"
        step = f", multiple of {info.multiple_of}" if info.multiple_of != 1 else ""
        yield f"{info.name} {bound}{step}"
