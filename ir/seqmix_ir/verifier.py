"""The verifier: checks scoping and types, collects every problem, and shows it under its op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from seqmix_ir.builder import infer_types
from seqmix_ir.dims import Dim, symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.text.literal import show_literal
from seqmix_ir.text.show import show_graph
from seqmix_ir.types import TensorType

__all__ = ["verify"]


def verify(module: Module) -> None:
    """IRError with the text of every broken graph and each message under the op it is about."""
    names = Counter(graph.name for graph in module.graphs)
    broken = [f"module '{module.name}' has {n} graphs '{g}'" for g, n in names.items() if n > 1]
    for graph in module.graphs:
        checker = _Checker(graph)
        checker.run()
        if checker.count:
            text = show_graph(graph, notes=checker.notes)
            tail = "".join(f"\n  ^ {note}" for note in checker.general)
            broken.append(f"graph '{graph.name}' has {checker.count} problem(s):\n{text}{tail}")
    if broken:
        raise IRError("\n".join(broken))


class _Checker:
    """Problems of one graph: by op, and those that belong to no op."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.notes: dict[Op, list[str]] = {}
        self.general: list[str] = []
        self._dims = {info.name for info in graph.dims}
        self._defined: set[Value] = set()
        self._checked: set[Block] = set()

    @property
    def count(self) -> int:
        """The number of problems found."""
        return len(self.general) + sum(map(len, self.notes.values()))

    def run(self) -> None:
        """Check the header, then the block."""
        graph = self.graph
        self._names("input", [p.hint for p in graph.block.params])
        self._names("output", graph.outputs)
        if len(graph.outputs) != len(graph.block.results):
            self.general.append(
                f"{len(graph.outputs)} outputs are named, {len(graph.block.results)} are returned"
            )
        self._names("dim", [info.name for info in graph.dims])
        for info in graph.dims:
            self.general.extend(f"dim {info.name}: {problem}" for problem in _bounds(info))
        self._block(graph.block, None)

    def _names(self, what: str, names: Sequence[str]) -> None:
        for name, times in Counter(names).items():
            if not name:
                self.general.append(f"{times} of the {what}s have no name")
            elif times > 1:
                self.general.append(f"{times} {what}s are called '{name}'")

    def _block(self, block: Block, owner: Op | None) -> None:
        """Check a block; a body that several ops share is sound or broken once."""
        if block in self._checked:
            return
        self._checked.add(block)
        inside = "" if owner is None else " of the body"
        known: set[Value] = set()
        for param in block.params:
            self._define(param, known, owner)
        for op in block.ops:
            self._operands(op, known)
            self._attributes(op)
            if op.body is not None:
                self._block(op.body, op)
            self._types(op)
            for value in op.results:
                self._define(value, known, op)
        for i, result in enumerate(block.results):
            if result not in known:
                self._note(owner, f"result {i}{inside} ({result.type}) is not defined in it")

    def _define(self, value: Value, known: set[Value], op: Op | None) -> None:
        if value in self._defined:
            self._note(op, f"a value of type {value.type} is defined twice")
        known.add(value)
        self._defined.add(value)
        self._sizes(op, str(value.type), value.type)
        if any(isinstance(size, int) and size < 0 for size in value.type.shape):
            self._note(op, f"{value.type} has a negative size")

    def _operands(self, op: Op, known: set[Value]) -> None:
        for i, operand in enumerate(op.operands):
            if operand is not None and operand not in known:
                self._note(op, f"operand {i} ({operand.type}) is not defined before this op")

    def _attributes(self, op: Op) -> None:
        for key, value in op.defn.attributes().items():
            try:
                spelled = show_literal(value)
            except IRError as error:
                self._note(op, f"'{key}': {error}")
            else:
                self._sizes(op, f"'{key}' = {spelled}", value)

    def _sizes(self, op: Op | None, what: str, holder: object) -> None:
        """Note names that the header lacks, each at its first use."""
        if unknown := sorted(_symbols(holder) - self._dims):
            self._note(op, f"{what} uses {', '.join(unknown)}, missing from the dims header")
            self._dims.update(unknown)

    def _types(self, op: Op) -> None:
        try:
            expected = infer_types(op.defn, op.types, op.body)
        except IRError as error:
            self._note(op, str(error))
            return
        except Exception as error:  # An op of a plugin may fail in any way; go on with the others.
            self._note(op, f"its infer raised {type(error).__name__}: {error}")
            return
        actual = tuple(v.type for v in op.results)
        if actual != expected:
            self._note(op, f"results are {_list(actual)}, the op gives {_list(expected)}")

    def _note(self, op: Op | None, text: str) -> None:
        notes = self.general if op is None else self.notes.setdefault(op, [])
        if text not in notes:
            notes.append(text)


def _bounds(info: DimInfo) -> Iterator[str]:
    """What is wrong with the bounds of a dimension."""
    if info.min < 0:
        yield f"min {info.min} is negative"
    if info.max is not None and info.max < info.min:
        yield f"max {info.max} is below min {info.min}"
    if info.multiple_of < 1:
        yield f"a multiple of {info.multiple_of} is no size; expected 1 or more"


def _symbols(holder: object) -> set[str]:
    """Every dimension that an attribute value or a type names."""
    if isinstance(holder, Dim):
        return symbols_of(holder)
    if isinstance(holder, TensorType):
        return _symbols(holder.shape)
    if isinstance(holder, tuple):
        return {name for item in holder for name in _symbols(item)}
    return set()


def _list(types: tuple[TensorType, ...]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"
