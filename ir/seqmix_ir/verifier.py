"""The verifier: checks scoping and types, collects every problem, and shows it under its op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from seqmix_ir.builder import infer_types
from seqmix_ir.dims import Dim, symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import UNKNOWN, Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.text.excerpt import clipped
from seqmix_ir.text.literal import show_literal
from seqmix_ir.text.show import show_graph
from seqmix_ir.types import TensorType

__all__ = ["verify"]

_MOST = 20
"""Messages about ops that are printed per graph; the others are counted."""


def verify(module: Module) -> None:
    """IRError with the text of every broken graph and each message under the op it is about.

    Of long graphs only the surroundings of the messages are printed.
    """
    names = Counter(graph.name for graph in module.graphs)
    broken = [f"module '{module.name}' has {n} graphs '{g}'" for g, n in names.items() if n > 1]
    weights: dict[str, TensorType] = {}
    for graph in module.graphs:
        checker = _Checker(graph, weights)
        checker.run()
        if checker.count:
            broken.append(checker.report())
    if broken:
        raise IRError("\n".join(broken))


class _Checker:
    """Problems of one graph: by op, and those that belong to no op."""

    def __init__(self, graph: Graph, weights: dict[str, TensorType]) -> None:
        """``weights`` gathers the type of each weight, over all graphs of a module."""
        self.graph = graph
        self.notes: dict[Op, list[str]] = {}
        self.general: list[str] = []
        self._weights = weights
        self._dims = {info.name for info in graph.dims}
        self._defined: set[Value] = set()
        self._checked: set[Block] = set()
        self._around: list[set[Value]] = []
        self._noted: set[tuple[Op | None, str]] = set()

    @property
    def count(self) -> int:
        """The number of problems found."""
        return len(self.general) + sum(map(len, self.notes.values()))

    def report(self) -> str:
        """The graph with its problems; the first ones when they are many."""
        left, notes, general = _MOST, {}, self.general[:_MOST]
        for op, texts in self.notes.items():
            if left <= 0:
                break
            notes[op] = texts[:left]
            left -= len(texts)
        more = self.count - len(general) - sum(map(len, notes.values()))
        tail = general + ([f"{more} more problems are not shown"] if more else [])
        text = "".join([show_graph(self.graph, notes=notes), *(f"\n  ^ {t}" for t in tail)])
        return f"graph '{self.graph.name}' has {self.count} problem(s):\n{text}"

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
            self._operands(op, known, block)
            self._attributes(op)
            if op.body is not None:
                self._around.append(known)
                self._block(op.body, op)
                self._around.pop()
            self._types(op)
            self._weight(op)
            for value in op.results:
                self._define(value, known, op)
        for i, result in enumerate(block.results):
            if result not in known:
                found = self._home(result, block)
                self._note(owner, f"result {i}{inside} ({result.type}) is not defined in it{found}")

    def _define(self, value: Value, known: set[Value], op: Op | None) -> None:
        if value in self._defined:
            self._note(op, f"a value of type {value.type} is defined twice")
        known.add(value)
        self._defined.add(value)
        self._sizes(op, str(value.type), value.type)
        if any(isinstance(size, int) and size < 0 for size in value.type.shape):
            self._note(op, f"{value.type} has a negative size")

    def _operands(self, op: Op, known: set[Value], block: Block) -> None:
        for i, operand in enumerate(op.operands):
            if operand is not None and operand not in known:
                found = self._home(operand, block)
                self._note(op, f"operand {i} ({operand.type}) is not defined before this op{found}")

    def _home(self, value: Value, block: Block) -> str:
        """Where a value is that ``block`` does not know at some place, and what to do."""
        if any(value in known for known in self._around):
            return (
                "; it belongs to the graph around this body, which is isolated: make it an operand "
                "of the op and a parameter of the body"
            )
        for op in block.ops:
            if value in op.results:
                return f"; '{op.name}' defines it further down: move that up"
        if any(value in op.results for op in self.graph.block.walk()):
            return "; it belongs to a body: return it from there"
        return "; nothing in this graph defines it"

    def _weight(self, op: Op) -> None:
        """Note a weight that was read as another type before: a module has it once."""
        if op.name != "weight" or not op.results:
            return
        key, type = str(op.defn.attributes()["key"]), op.results[0].type
        known = self._weights.setdefault(key, type)
        if known != type:
            self._note(
                op,
                f"weight '{key}' is read as {type} here and as {known} before; a weight has one "
                "type: read it as that, and cast it",
            )

    def _attributes(self, op: Op) -> None:
        for key, value in op.defn.attributes().items():
            try:
                spelled = show_literal(value)
            except IRError as error:
                self._note(op, clipped(f"'{key}': {error}"))
            else:
                self._sizes(op, f"'{key}' = {clipped(spelled)}", value)

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
        if op is not None and op.loc != UNKNOWN:
            text = f"{op.loc}: {text}"
        if (op, text) in self._noted:
            return
        self._noted.add((op, text))
        notes = self.general if op is None else self.notes.setdefault(op, [])
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
