"""One example of an op in one dtype: a module with a single op, its inputs and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from seqmix.backend import Program
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.testing.inputs import distance
from seqmix.testing.report import Row
from seqmix.testing.tolerances import TOLERANCES
from seqmix.weights import Weights, to_torch
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array, Example
from seqmix_ir.dims import evaluate_size
from seqmix_ir.graph import Graph, Module, Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES, Interpreter
from seqmix_ir.types import FLOATS, DType, TensorType

__all__ = ["GRAPH", "Case", "make_case"]

GRAPH = "main"

_NAMES = {numpy: name for name, numpy in NUMPY_DTYPES.items()}

_CONFIG = ModelConfig(
    name="op",
    vocab_size=1,
    width=1,
    context_length=1,
    blocks=[BlockConfig(steps=[Kind.model_validate({"kind": "mlp", "hidden": 1})])],
)
"""A program needs one; an op stands for no model."""


@dataclass(frozen=True)
class Case:
    """A graph ``main`` that applies one op once; absent operands are no inputs of it."""

    example: Example
    dtype: DType
    operands: tuple[Array | None, ...]
    module: Module

    @property
    def op(self) -> Op:
        """The one op of the graph."""
        return self.module.graph(GRAPH).block.ops[0]

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """The operands by the names of the graph."""
        names = self.module.graph(GRAPH).inputs
        return dict(zip(names, (a for a in self.operands if a is not None), strict=True))

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Something for every weight that the op reads."""
        rng = np.random.default_rng(3)
        return {
            name: rng.standard_normal([evaluate_size(size, {}) for size in type.shape]).astype(
                NUMPY_DTYPES[type.dtype]
            )
            for name, type in self.module.weights().items()
        }

    @cached_property
    def expected(self) -> dict[str, Array]:
        """What the definition gives in float64, for the operands as they are in this dtype."""
        return self.interpret(self.module, judge=True)

    def interpret(self, module: Module, judge: bool = False) -> dict[str, Array]:
        """Results of a module with the inputs of this one."""
        return Interpreter(module, self.weights, judge).run(GRAPH, self.inputs)

    def decomposed(self, style: str) -> Module:
        """The same graph with the op written in simpler ones."""
        b, block = Builder().inside(style), self.module.graph(GRAPH).block
        results = self.example.defn.decompositions()[style](b, self.op)
        written = self.module.graph(GRAPH).with_block(b.block(block.params, results))
        return Module(self.module.name, (written,))

    def program(self) -> Program:
        """What a backend compiles."""
        tensors = {name: to_torch(array) for name, array in self.weights.items()}
        return Program(self.module, Weights.of_tensors(tensors), _CONFIG)

    def row(
        self, check: str, where: str, found: Mapping[str, Array | Tensor], judge: bool = False
    ) -> Row:
        """The distance of results from what is expected, of the result that is worst.

        Integers and bools must be equal. A result that is declared narrower than the case may be
        as rough as its own dtype allows; results of the ``judge`` may not.
        """
        worst = Row(check, where, 0.0, TOLERANCES["f64" if judge else self.dtype])
        declared = self.example.defn.results
        for i, (key, value) in enumerate(self.module.graph(GRAPH).results.items()):
            result, wanted = _tensor(found[key]), _tensor(self.expected[key])
            dtype, name = value.type.dtype, key if declared[0].startswith("*") else declared[i]
            if dtype in FLOATS:
                rough = ("f64",) if judge else (self.dtype, dtype)
                allowed = max(TOLERANCES[d] for d in rough)
                row = Row(check, where, distance(result, wanted), allowed, name)
            else:
                same = torch.equal(result, wanted)
                row = Row(check, where, 0.0 if same else 1.0, 0.0, name)
            if not row.ok or (worst.ok and row.error > worst.error):
                worst = row
        return worst


def make_case(example: Example, dtype: DType) -> Case:
    """The example with its float64 operands narrowed to ``dtype``; IRError where that is refused.

    An operand given as float32 is one that stays at least as wide, such as a state.
    """
    operands = tuple(
        None if a is None else _narrowed(np.asarray(a), dtype) for a in example.operands
    )
    example.defn.check_count(len(operands))
    names = _operand_names(example.defn.operands, len(operands))
    params = [
        None if a is None else Value(TensorType(_NAMES[a.dtype], a.shape), name)
        for a, name in zip(operands, names, strict=True)
    ]
    b = Builder()
    body = None if example.body is None else example.body(dtype)
    results = b.emit(example.defn, *params, body=body)
    block = b.block([p for p in params if p is not None], results)
    outputs = tuple(f"result{i}" for i in range(len(results)))
    return Case(example, dtype, operands, Module("op", (Graph(GRAPH, block, outputs),)))


def _narrowed(array: Array, dtype: DType) -> Array:
    if array.dtype == np.float64:
        return array.astype(NUMPY_DTYPES[dtype])
    if array.dtype == np.float32 and dtype == "f64":
        return array.astype(np.float64)
    return array


def _operand_names(declared: tuple[str, ...], count: int) -> list[str]:
    """A name per operand; those of a variadic one are numbered."""
    names = [name.removesuffix("?") for name in declared if not name.startswith("*")]
    rest = next((name[1:] for name in declared if name.startswith("*")), "operand")
    return [*names, *(f"{rest}{i}" for i in range(count - len(names)))]


def _tensor(value: Array | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else to_torch(np.asarray(value))
