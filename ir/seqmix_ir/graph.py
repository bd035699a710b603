"""The graph: frozen values, ops, blocks, graphs and modules; passes build new ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.types import Loc, TensorType

__all__ = ["UNKNOWN", "Block", "DimInfo", "Graph", "Module", "Op", "Value"]

UNKNOWN = Loc("?")


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor; identity is the object.

    ``hint`` helps printing. On the parameters of a :class:`Graph` it is the input's name.
    """

    type: TensorType
    hint: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One application of an op; an absent optional operand is ``None``."""

    defn: OpDef
    operands: tuple[Value | None, ...]
    results: tuple[Value, ...]
    body: Block | None = None
    loc: Loc = UNKNOWN

    @property
    def name(self) -> str:
        """The name of the op's definition."""
        return self.defn.name

    @property
    def values(self) -> tuple[Value, ...]:
        """The operands of an op none of whose operands is absent."""
        present = tuple(v for v in self.operands if v is not None)
        if len(present) != len(self.operands):
            raise IRError(
                f"{self.loc}: '{self.name}' has an absent operand; look at 'operands' instead"
            )
        return present

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        """The operand types, None where the operand is absent."""
        return tuple(None if v is None else v.type for v in self.operands)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Parameters, ops in order, results. A block sees only its own values: bodies are isolated."""

    params: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]

    def walk(self) -> Iterator[Op]:
        """Every op, bodies included, outer first."""
        for op in self.ops:
            yield op
            if op.body is not None:
                yield from op.body.walk()


@dataclass(frozen=True, slots=True)
class DimInfo:
    """What is known of a named size: inclusive bounds, and a number that divides it."""

    name: str
    min: int = 1
    max: int | None = None
    multiple_of: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A named function of a module; its inputs are named by the hints of the block's parameters."""

    name: str
    block: Block
    outputs: tuple[str, ...]
    dims: tuple[DimInfo, ...] = ()

    @property
    def inputs(self) -> dict[str, Value]:
        """Parameters by input name."""
        return {p.hint: p for p in self.block.params}

    @property
    def results(self) -> dict[str, Value]:
        """Results by output name."""
        return dict(zip(self.outputs, self.block.results, strict=True))

    def with_block(self, block: Block) -> Graph:
        """The same graph with another block."""
        return dataclasses.replace(self, block=block)


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Graphs by name. Weights are named by ``weight`` ops and live outside."""

    name: str
    graphs: tuple[Graph, ...] = field(default=())

    def graph(self, name: str) -> Graph:
        """The graph called ``name``; IRError with near names when there is none."""
        for graph in self.graphs:
            if graph.name == name:
                return graph
        names = [g.name for g in self.graphs]
        raise IRError(
            f"module '{self.name}' has no graph '{name}'{did_you_mean(name, names)}; "
            f"it has {', '.join(names)}"
        )

    def weights(self) -> dict[str, TensorType]:
        """Type of every weight that some graph reads, by name, in order of first use."""
        found: dict[str, TensorType] = {}
        for graph in self.graphs:
            for op in graph.block.walk():
                if op.name == "weight":
                    found[op.defn.attributes()["key"]] = op.results[0].type
        return found
