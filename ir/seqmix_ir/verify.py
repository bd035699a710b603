"""The verifier: checks scoping and types, collects every problem, and shows it under its op."""

from __future__ import annotations

from collections import Counter

from seqmix_ir.builder import infer_types
from seqmix_ir.dims import symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Graph, Module, Op, Value
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
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.notes: dict[Op, list[str]] = {}
        self.general: list[str] = []
        self._dims = {info.name for info in graph.dims}
        self._defined: set[Value] = set()

    @property
    def count(self) -> int:
        """The number of problems found."""
        return len(self.general) + sum(map(len, self.notes.values()))

    def run(self) -> None:
        """Check the header, then the block."""
        graph = self.graph
        inputs = Counter(p.hint for p in graph.block.params)
        for name, times in inputs.items():
            if not name:
                self.general.append("an input has no name")
            elif times > 1:
                self.general.append(f"{times} inputs are called '{name}'")
        for name, times in Counter(graph.outputs).items():
            if times > 1:
                self.general.append(f"{times} outputs are called '{name}'")
        if len(graph.outputs) != len(graph.block.results):
            self.general.append(
                f"{len(graph.outputs)} outputs are named, {len(graph.block.results)} are returned"
            )
        for info in graph.dims:
            if info.max is not None and info.max < info.min:
                self.general.append(f"dim {info.name}: max {info.max} is below min {info.min}")
        self._block(graph.block, "")

    def _block(self, block: Block, inside: str) -> None:
        known: set[Value] = set()
        for param in block.params:
            self._define(param, known, None)
        for op in block.ops:
            self._operands(op, known)
            if op.body is not None:
                self._block(op.body, f" of the body of '{op.name}'")
            self._types(op)
            for value in op.results:
                self._define(value, known, op)
        for i, result in enumerate(block.results):
            if result not in known:
                self.general.append(f"result {i}{inside} is not defined")

    def _define(self, value: Value, known: set[Value], op: Op | None) -> None:
        if value in self._defined:
            self._note(op, f"a value of type {value.type} is defined twice")
        known.add(value)
        self._defined.add(value)
        unknown = sorted(_symbols(value.type) - self._dims)
        if unknown:
            self._note(op, f"{value.type} uses {', '.join(unknown)}, missing from the dims header")

    def _operands(self, op: Op, known: set[Value]) -> None:
        for i, operand in enumerate(op.operands):
            if operand is not None and operand not in known:
                self._note(op, f"operand {i} ({operand.type}) is not defined before this op")

    def _types(self, op: Op) -> None:
        try:
            expected = infer_types(op.defn, op.types, op.body)
        except IRError as error:
            self._note(op, str(error))
            return
        actual = tuple(v.type for v in op.results)
        if actual != expected:
            self._note(op, f"results are {_list(actual)}, the op gives {_list(expected)}")

    def _note(self, op: Op | None, text: str) -> None:
        if op is None:
            self.general.append(text)
        else:
            self.notes.setdefault(op, []).append(text)


def _symbols(type: TensorType) -> set[str]:
    return {name for size in type.shape for name in symbols_of(size)}


def _list(types: tuple[TensorType, ...]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"
