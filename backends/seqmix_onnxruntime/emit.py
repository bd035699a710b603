"""Writing an IR graph as ONNX nodes: names, symbolic sizes, initializers, one emitter per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from seqmix.errors import BackendError
from seqmix.weights import Weights
from seqmix_ir.dims import Dim, Opaque, Size, show_size, symbols_of
from seqmix_ir.graph import Block, Graph, Op, Value
from seqmix_ir.types import DType
from seqmix_onnxruntime.form import Form
from seqmix_onnxruntime.kernels import casts_around, with_dtypes

__all__ = [
    "ONNX_DTYPES",
    "Emit",
    "Emitter",
    "Root",
    "find_sizes",
    "fixed_shape",
    "tensor_info",
    "tensor_proto",
]

ONNX_DTYPES: dict[DType, int] = {
    "f64": TensorProto.DOUBLE,
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "i64": TensorProto.INT64,
    "i32": TensorProto.INT32,
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}

Emit: TypeAlias = "Callable[[Emitter, Op, list[str]], Sequence[str]]"


@dataclass
class Root:
    """What all blocks of one file share: initializers, sizes, names."""

    weights: Weights
    emitters: dict[str, Emit]
    form: Form
    initializers: dict[str, Callable[[], NDArray[Any]]] = field(default_factory=dict)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Per dimension name: the input, and its axis, that show the size at run time."""
    positive: frozenset[Any] = frozenset()
    """Dimension names that are never 0."""
    transposed: frozenset[str] = frozenset()
    """Keys of the weights that only a ``linear`` reads: the file holds these transposed."""
    reserved: frozenset[str] = frozenset()
    """Names of inputs and outputs, which no weight may take."""
    counter: int = 0

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        self.counter += 1
        return f"{stem}_{self.counter}"


class Emitter:
    """Writes one block. Bodies have emitters of their own and see the names of the outer one."""

    def __init__(self, root: Root, outer: Emitter | None = None) -> None:
        """``outer`` is the emitter of the block around a body."""
        self.root = root
        self.nodes: list[NodeProto] = []
        self.names: dict[Value, str] = {}
        self._outer = outer
        self.weight_keys: dict[str, str] = {}
        self._once: dict[Any, str] = {}
        self._made: dict[tuple[Any, ...], list[str]] = {}

    def block(self, block: Block, results: Sequence[str]) -> None:
        """Write all ops; the results get exactly the given names."""
        wanted: dict[Value, str] = {}
        for value, name in zip(block.results, results, strict=True):
            if value not in block.params and value not in wanted:
                wanted[value] = name
        for op in block.ops:
            self._op(op, wanted)
        for value, name in zip(block.results, results, strict=True):
            if self.names[value] != name:
                self.nodes.append(helper.make_node("Identity", [self.names[value]], [name]))

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        count: int = 1,
        **attributes: Any,
    ) -> list[str]:
        """Append a node and return the names of its outputs; "" is an absent input.

        A node that this block has already is not repeated.
        """
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        key = (kind, tuple(given), count, repr(sorted(attributes.items())))
        alone = any(isinstance(value, GraphProto) for value in attributes.values())
        if not alone and key in self._made:
            return list(self._made[key])
        outputs = [self.root.fresh(kind) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, given, outputs, name=outputs[0], **attributes))
        self._made[key] = outputs
        return list(outputs)

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output."""
        return self.node(kind, inputs, **attributes)[0]

    def choice(
        self,
        condition: str,
        results: Sequence[Value],
        yes: Callable[[Emitter], Sequence[str]],
        no: Callable[[Emitter], Sequence[str]],
    ) -> list[str]:
        """What one of two writers gives, decided at run time by a vector of one bool."""

        def branch(write: Callable[[Emitter], Sequence[str]]) -> object:
            inner = Emitter(self.root, outer=self)
            outputs = list(write(inner))
            infos = [tensor_info(n, v) for n, v in zip(outputs, results, strict=True)]
            return helper.make_graph(inner.nodes, self.root.fresh("branch"), [], infos)

        branches = {"then_branch": branch(yes), "else_branch": branch(no)}
        return self.node("If", [condition], len(results), **branches)

    def array(self, array: NDArray[Any]) -> str:
        """The name of a constant array; equal arrays share one initializer."""
        key = ("array", str(array.dtype), array.shape, array.tobytes())

        def make() -> str:
            name = self.root.fresh("const")
            self.root.initializers[name] = lambda: array
            return name

        return self.top.once(key, make)

    def ints(self, *values: int) -> str:
        """The name of a constant int64 vector."""
        return self.array(np.array(values, np.int64))

    def once(self, key: Any, make: Callable[[], str]) -> str:
        """A name that is made at the first request of ``key`` in this block."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def weight(self, key: str, *, transpose: bool = False) -> str:
        """The name of a weight or of its transpose; it is read when the file is made.

        A weight that is read both ways is stored once, and turned by a node. ONNX Runtime does
        that when it loads the file.
        """
        root, top = self.root, self.top
        stem = f"weight.{key}" if key in root.reserved else key
        if not transpose:
            root.initializers.setdefault(stem, lambda: root.weights.numpy(key))
            top.weight_keys[stem] = key
            return stem
        if key not in root.transposed:
            return top.once(("turned", key), lambda: top.one("Transpose", stem, perm=[1, 0]))
        root.initializers.setdefault(f"{stem}.T", lambda: root.weights.numpy(key).T)
        return f"{stem}.T"

    def joined_weight(self, keys: Sequence[str]) -> str:
        """The name of several weights ``[N, K]`` below each other, transposed."""
        name = f"{'+'.join(keys)}.T"
        weights = self.root.weights
        self.root.initializers.setdefault(
            name, lambda: np.concatenate([weights.numpy(key) for key in keys]).T
        )
        return name

    def cast(self, name: str, dtype: DType) -> str:
        """A value in another type, cast at most once in this block."""
        return self.once(
            ("cast", name, dtype), lambda: self.one("Cast", name, to=ONNX_DTYPES[dtype])
        )

    def size(self, size: Size) -> str:
        """The name of a vector of one int64 that holds ``size``."""
        if isinstance(size, int):
            return self.ints(size)
        top = self.top
        return top.once(("size", show_size(size)), lambda: top._computed(size))

    def shape(self, sizes: Sequence[Size]) -> str:
        """The name of an int64 vector with the given sizes."""
        if all(isinstance(s, int) for s in sizes):
            return self.ints(*(s for s in sizes if isinstance(s, int)))
        key = ("shape", tuple(map(show_size, sizes)))
        top = self.top
        return top.once(key, lambda: top.one("Concat", *(top.size(s) for s in sizes), axis=0))

    @property
    def top(self) -> Emitter:
        """The emitter of the graph that everything stands in."""
        return self if self._outer is None else self._outer.top

    def _op(self, op: Op, wanted: dict[Value, str]) -> None:
        inputs = ["" if v is None else self.names[v] for v in op.operands]
        first = len(self.nodes)
        outputs = self._written(op, inputs)
        for node in self.nodes[first:]:
            node.doc_string = str(op.loc)
        for i, value in enumerate(op.results):
            if value in wanted and self._rename(outputs[i], wanted[value], first):
                outputs[i] = wanted[value]
            self.names[value] = outputs[i]

    def _written(self, op: Op, inputs: list[str]) -> list[str]:
        """Emit an op, with casts around it where its types have no kernel."""
        emit, casts = self.root.emitters[op.name], casts_around(op)
        if not casts:
            return list(emit(self, op, inputs))
        for i, value in enumerate(op.operands):
            if value is not None and value.type.dtype in casts:
                inputs[i] = self.cast(inputs[i], casts[value.type.dtype])
        outputs = list(emit(self, with_dtypes(op, casts), inputs))
        for i, value in enumerate(op.results):
            if value.type.dtype in casts:
                outputs[i] = self.one("Cast", outputs[i], to=ONNX_DTYPES[value.type.dtype])
        return outputs

    def _rename(self, old: str, new: str, first: int) -> bool:
        """Give an output of the nodes from ``first`` on the name that a result must have."""
        made = [node for node in self.nodes[first:] if old in node.output]
        if not made:
            return False
        for node in self.nodes[first:]:
            node.output[:] = [new if name == old else name for name in node.output]
            node.input[:] = [new if name == old else name for name in node.input]
        for key, outputs in self._made.items():
            self._made[key] = [new if name == old else name for name in outputs]
        self._once.update({key: new for key, name in self._once.items() if name == old})
        return True

    def _computed(self, size: Dim) -> str:
        total = ""
        for monomial, coefficient in size.terms:
            factors = [self.size_of_atom(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.ints(coefficient))
            product = factors[0]
            for factor in factors[1:]:
                product = self.one("Mul", product, factor)
            total = self.one("Add", total, product) if total else product
        return total

    def size_of_atom(self, atom: str | Opaque) -> str:
        """The vector of one int64 for a dimension name or an opaque size."""
        if isinstance(atom, str):
            if atom not in self.root.sizes:
                raise BackendError(
                    f"backend 'onnxruntime': no input of the graph has an axis of size {atom} alone"
                )
            source, axis = self.root.sizes[atom]
            return self.once(
                ("axis", atom), lambda: self.one("Shape", source, start=axis, end=axis + 1)
            )
        args = [self.size(a) for a in atom.args]
        if atom.kind in ("min", "max"):
            return self.one(atom.kind.capitalize(), *args)
        if atom.kind == "isqrt":
            # Exact below 2**52; the cast to int64 rounds down.
            return self.cast(self.one("Sqrt", self.cast(args[0], "f64")), "i64")
        left, right = args
        if atom.kind == "ceildiv":
            left = self.one("Add", left, self.one("Sub", right, self.ints(1)))
        return self.one("Div", left, right)


def find_sizes(graph: Graph, names: dict[str, str]) -> dict[str, tuple[str, int]]:
    """For every dimension name, an input axis that shows it; ``names`` are ONNX input names."""
    found: dict[str, tuple[str, int]] = {}
    for hint, value in graph.inputs.items():
        for axis, size in enumerate(value.type.shape):
            text = show_size(size)
            if isinstance(size, Dim) and {text} == symbols_of(size):
                found.setdefault(text, (names[hint], axis))
    return found


def tensor_info(name: str, value: Value) -> Any:
    """The declaration of an input or output."""
    shape = [s if isinstance(s, int) else show_size(s) for s in value.type.shape]
    return helper.make_tensor_value_info(name, ONNX_DTYPES[value.type.dtype], shape)


def tensor_proto(name: str, array: NDArray[Any]) -> TensorProto:
    """An initializer with its bytes."""
    return numpy_helper.from_array(np.asarray(array, order="C"), name)


def fixed_shape(op: Op, operand: int, start: int = 0) -> tuple[int, ...]:
    """Sizes of an operand from axis ``start`` on that the op's definition wants as numbers."""
    value = op.operands[operand]
    sizes = () if value is None else value.type.shape[start:]
    numbers = tuple(s for s in sizes if isinstance(s, int))
    if not numbers or len(numbers) != len(sizes):
        raise BackendError(
            f"{op.loc}: backend 'onnxruntime' needs '{op.name}' with fixed sizes at operand "
            f"{operand}, found {None if value is None else value.type}"
        )
    return numbers
