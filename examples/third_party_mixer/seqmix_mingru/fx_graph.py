"""A graph of the IR written as a graph of torch.fx, which torch.compile takes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import seqmix.ops  # noqa: F401  (binds the ops of seqmix to torch)
import torch
from seqmix.dtypes import torch_dtype
from seqmix.op import bound_ops
from seqmix_ir.dims import Dim, Opaque, Size, show_size
from seqmix_ir.graph import Block, Graph, Op, Value
from torch import Tensor, fx, nn

from seqmix_mingru.scan_loop import ScanLoop
from seqmix_mingru.torch_forms import FORMS

__all__ = ["missing_form", "write_graph"]

Weight = Callable[[str], Tensor]


def missing_form(op: Op) -> str | None:
    """None, or why the op is nothing that torch can call."""
    if op.name in FORMS or op.name in ("scan", "weight") or _bound_name(op) in bound_ops():
        return None
    return f"torch has no function for '{op.name}', and no package has bound it"


def write_graph(graph: Graph, weight: Weight) -> fx.GraphModule:
    """A module that takes the inputs of the graph in order and returns a tuple of its results."""
    writer = _Writer(weight)
    inputs = [writer.graph.placeholder(f"in{i}") for i in range(len(graph.inputs))]
    for value, node in zip(graph.inputs.values(), inputs, strict=True):
        for axis, size in enumerate(value.type.shape):
            if _is_name(size) and show_size(size) not in writer.sizes:
                writer.sizes[show_size(size)] = writer.graph.call_method("size", (node, axis))
    return writer.block(graph.block, inputs)


class _Writer:
    """Writes one block; ``sizes`` has the node of every named size."""

    def __init__(self, weight: Weight) -> None:
        self.graph = fx.Graph()
        self.sizes: dict[str, Any] = {}
        self._root = nn.Module()
        self._weight = weight
        self._values: dict[Value | None, Any] = {None: None}

    def block(self, block: Block, inputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The block, with ``inputs`` for its parameters."""
        self._values.update(zip(block.params, inputs, strict=True))
        for op in block.ops:
            for value, node in zip(op.results, self._results(op), strict=True):
                # Without effect where the function gives the declared dtype already.
                declared = torch_dtype(value.type.dtype)
                self._values[value] = self.graph.call_method("to", (node, declared))
        self.graph.output(tuple(self._values[value] for value in block.results))
        return fx.GraphModule(self._root, self.graph)

    def _results(self, op: Op) -> list[fx.Node]:
        operands = [self._values[value] for value in op.operands]
        if op.name == "weight":
            return [self._buffer(op)]
        if op.name == "scan":
            return self._several(self._loop(op, operands), len(op.results))
        attributes = {k: self._attribute(v) for k, v in op.defn.attributes().items()}
        if op.name in FORMS:
            return [self.graph.call_function(FORMS[op.name], tuple(operands), attributes)]
        bound = bound_ops()[_bound_name(op)]
        out = self.graph.call_function(bound.overload, _grouped(op, operands), attributes)
        # What an op saves for its gradient comes behind its results.
        alone = len(op.results) + bound.saves == 1
        return [out] if alone else self._several(out, len(op.results))

    def _several(self, out: fx.Node, count: int) -> list[fx.Node]:
        return [self.graph.call_function(operator.getitem, (out, i)) for i in range(count)]

    def _buffer(self, op: Op) -> fx.Node:
        name = f"weight{sum(1 for _ in self._root.buffers())}"
        self._root.register_buffer(name, self._weight(op.defn.attributes()["key"]))
        return self.graph.get_attr(name)

    def _loop(self, op: Op, operands: list[Any]) -> fx.Node:
        """A scan as a module; the named sizes are inputs of its body too."""
        if op.body is None:
            raise RuntimeError(f"{op.loc}: a scan without a body")
        inner = _Writer(self._weight)
        inputs = [inner.graph.placeholder(f"in{i}") for i in range(len(op.body.params))]
        inner.sizes = {name: inner.graph.placeholder(f"size_{name}") for name in self.sizes}
        name = f"scan{sum(1 for _ in self._root.children())}"
        loop = ScanLoop(inner.block(op.body, inputs), **op.defn.attributes())
        self._root.add_module(name, loop)
        return self.graph.call_module(name, (tuple(operands), tuple(self.sizes.values())))

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._attribute, value))
        return self._size(value) if isinstance(value, Dim) else value

    def _size(self, size: Size) -> Any:
        """A number, or the node that computes the size."""
        if isinstance(size, int):
            return size
        total: Any = 0
        for atoms, coefficient in size.terms:
            factors = [coefficient, *map(self._atom, atoms)]
            total = self._apply(operator.add, total, reduce(self._product, factors))
        return total

    def _product(self, left: Any, right: Any) -> Any:
        return self._apply(operator.mul, left, right)

    def _atom(self, atom: str | Opaque) -> Any:
        if isinstance(atom, str):
            return self.sizes[atom]
        args = [self._size(arg) for arg in atom.args]
        if atom.kind == "isqrt":
            return self.graph.call_function(math.isqrt, tuple(args))
        if atom.kind == "floordiv":
            return self._apply(operator.floordiv, *args)
        if atom.kind == "ceildiv":
            up = self._apply(operator.add, args[0], self._apply(operator.sub, args[1], 1))
            return self._apply(operator.floordiv, up, args[1])
        pick = torch.sym_min if atom.kind == "min" else torch.sym_max
        return reduce(lambda a, b: self._apply(pick, a, b), args)

    def _apply(self, function: Callable[..., Any], left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return function(left, right)
        return self.graph.call_function(function, (left, right))


def _bound_name(op: Op) -> str:
    return op.name.replace(".", "_")


def _grouped(op: Op, operands: list[Any]) -> tuple[Any, ...]:
    """Operands as torch's schema takes them: a variadic one is a list."""
    fixed = sum(not name.startswith("*") for name in op.defn.operands)
    if fixed == len(op.defn.operands):
        return tuple(operands)
    return (*operands[:fixed], operands[fixed:])


def _is_name(size: Size) -> bool:
    return isinstance(size, Dim) and show_size(size).isidentifier()
